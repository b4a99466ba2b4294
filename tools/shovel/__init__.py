"""The process of one attempt of a shovel: started by a member, never typed by an operator."""
