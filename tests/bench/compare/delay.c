/* A switch of Ethernet frames between TAP devices, which delivers each a fixed time later.
 *
 *     delay MICROSECONDS DEVICE...
 *
 * Creates the devices, and prints a line when all are there.  The last byte of a hardware address
 * is the number of the device, from 1; other frames go to all.  Ends with its standard input. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum { DEVICES_MAX = 16, FRAME_BYTES = 2048, FRAMES = 1 << 15 };

struct frame {
    int64_t due;
    int from;
    ssize_t size;
    unsigned char bytes[FRAME_BYTES];
};

static struct frame waiting[FRAMES]; /* a ring, in the order of arrival and so of `due` */
static struct pollfd polled[DEVICES_MAX + 1];
static int devices;

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static int create(const char *name)
{
    struct ifreq request = {.ifr_flags = IFF_TAP | IFF_NO_PI};
    int device = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    strncpy(request.ifr_name, name, IFNAMSIZ - 1);
    if (device < 0 || ioctl(device, TUNSETIFF, &request)) {
        perror(name);
        exit(1);
    }
    return device;
}

/* A device that takes no more loses the frame, as a full switch does. */
static void deliver(const struct frame *one)
{
    int target = one->bytes[0] & 1 ? 0 : one->bytes[5];
    for (int place = 1; place <= devices; place++)
        if (place != one->from && (target == place || target < 1 || target > devices))
            (void)!write(polled[place].fd, one->bytes, one->size);
}

int main(int count, char **words)
{
    unsigned first = 0, next = 0;
    if (count < 3 || count - 2 > DEVICES_MAX) {
        fprintf(stderr, "usage: delay MICROSECONDS DEVICE...\n");
        return 64;
    }
    const int64_t delay = atoll(words[1]) * 1000;
    devices = count - 2;
    polled[0] = (struct pollfd){.fd = 0, .events = POLLIN};
    for (int place = 1; place <= devices; place++)
        polled[place] = (struct pollfd){.fd = create(words[place + 1]), .events = POLLIN};
    prctl(PR_SET_TIMERSLACK, 1); /* or each frame is up to 50 us late */
    puts("ready");
    fflush(stdout);
    while (!(polled[0].revents & (POLLIN | POLLHUP))) {
        int64_t left = first == next ? 1000000000 : waiting[first % FRAMES].due - now_ns();
        if (left < 0)
            left = 0;
        struct timespec pause = {left / 1000000000, left % 1000000000};
        if (ppoll(polled, devices + 1, &pause, NULL) < 0 && errno != EINTR)
            return 1;
        for (int place = 1; place <= devices; place++)
            while (polled[place].revents & POLLIN && next - first < FRAMES) {
                struct frame *one = &waiting[next % FRAMES];
                one->size = read(polled[place].fd, one->bytes, FRAME_BYTES);
                if (one->size <= 0)
                    break;
                one->from = place;
                one->due = now_ns() + delay;
                next++;
            }
        for (int64_t now = now_ns(); first != next && waiting[first % FRAMES].due <= now; first++)
            deliver(&waiting[first % FRAMES]);
    }
    return 0;
}
