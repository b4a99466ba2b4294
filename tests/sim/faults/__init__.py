"""What the simulator does to members, links, disks and clocks."""
