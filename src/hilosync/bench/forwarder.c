/* The machinery of links.py: namespaces, TUN devices between them, and packets that take their time.
 *
 *   forwarder                       makes a hub, then obeys lines on standard input until that ends:
 *       site                        a namespace whose device `wan` leads to the hub's `siteN`; N counts from 0
 *       delay N D J R               each way: D us, varied by J us; R = 1 lets packets overtake one another
 *   forwarder enter PATH COMMAND…   runs a command in the network namespace that PATH names
 *
 * It answers each line with `ok` and a number (the descriptor of the new namespace), or `error` and the reason.
 *
 * The namespaces have no names: they exist as long as this process or one in them does. At the end of its input,
 * which comes when its parent dies in whatever way, it kills what still runs in them.
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { SITES = 64, LARGEST = 2048, BATCH = 64, WAITING = 1 << 16 };

typedef struct Packet {
    int64_t due;    /* ns of the monotonic clock */
    uint64_t order; /* of arrival: what is due at the same time leaves in it */
    int to;
    int size;
    struct Packet *next; /* in the list of free ones */
    unsigned char data[LARGEST];
} Packet;

typedef struct {
    int64_t delay, jitter; /* ns */
    int overtake;
    int64_t from, until; /* the delay's deviation goes from `first` to `last` in this time */
    double first, last;
} Direction;

/* Descriptor 2 n is the hub's end of site n, 2 n + 1 the site's; so e ^ 1 is where a packet of e goes. */
static int ends[2 * SITES], spaces[SITES + 1];
static Direction directions[2 * SITES];
static int sites, watched;

static Packet *heap[WAITING], *unused;
static int waiting;
static uint64_t arrivals, state = 88172645463325252u;

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

/* Uniform in [-1, 1): xorshift64 (Marsaglia, 2003). */
static double uniform(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (double)(state >> 11) / (double)(1ULL << 52) - 1.0;
}

/* Where packets may overtake, each has a deviation of its own. Otherwise the deviation wanders along straight lines
 * between random points that lie so far apart that it never falls faster than half of what time goes on. */
static int64_t delay_of(Direction *way, int64_t at) {
    if (way->jitter == 0) return way->delay;
    double deviation;
    if (way->overtake) {
        deviation = uniform();
    } else {
        int64_t period = 4 * way->jitter > 50000000 ? 4 * way->jitter : 50000000;
        while (at >= way->until) {
            way->from = at - way->until > period ? at : way->until;
            way->until = way->from + period;
            way->first = way->last;
            way->last = uniform();
        }
        double share = (double)(at - way->from) / (double)(way->until - way->from);
        deviation = way->first + share * (way->last - way->first);
    }
    int64_t whole = way->delay + (int64_t)(deviation * (double)way->jitter);
    return whole > 0 ? whole : 0;
}

static int before(const Packet *one, const Packet *other) {
    return one->due != other->due ? one->due < other->due : one->order < other->order;
}

static void push(Packet *packet) {
    int hole = waiting++;
    while (hole > 0 && before(packet, heap[(hole - 1) / 2])) {
        heap[hole] = heap[(hole - 1) / 2];
        hole = (hole - 1) / 2;
    }
    heap[hole] = packet;
}

static Packet *pop(void) {
    Packet *first = heap[0], *last = heap[--waiting];
    int hole = 0;
    for (int child = 1; child < waiting; child = 2 * hole + 1) {
        if (child + 1 < waiting && before(heap[child + 1], heap[child])) child++;
        if (!before(heap[child], last)) break;
        heap[hole] = heap[child];
        hole = child;
    }
    heap[hole] = last;
    return first;
}

static void receive(int end) {
    for (int count = 0; count < BATCH && waiting < WAITING; count++) {
        Packet *packet = unused;
        if (packet != NULL) unused = packet->next;
        else packet = malloc(sizeof *packet);
        if (packet == NULL) return;
        packet->size = (int)read(ends[end], packet->data, LARGEST);
        if (packet->size <= 0) {
            packet->next = unused;
            unused = packet;
            return;
        }
        int64_t at = now();
        packet->due = at + delay_of(&directions[end], at);
        packet->order = arrivals++;
        packet->to = end ^ 1;
        push(packet);
    }
}

static void deliver(void) {
    int64_t at = now();
    while (waiting > 0 && heap[0]->due <= at) {
        Packet *packet = pop();
        /* A device that takes no packet has lost it, as a wire would. */
        if (write(ends[packet->to], packet->data, (size_t)packet->size) < 0) errno = 0;
        packet->next = unused;
        unused = packet;
    }
}

static int tun(const char *name) {
    struct ifreq request;
    int device = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (device < 0) return -1;
    memset(&request, 0, sizeof request);
    request.ifr_flags = IFF_TUN | IFF_NO_PI;
    snprintf(request.ifr_name, sizeof request.ifr_name, "%s", name);
    return ioctl(device, TUNSETIFF, &request) < 0 ? -1 : device;
}

/* A new network namespace, which this process then is in. */
static int namespace(void) {
    if (unshare(CLONE_NEWNET) < 0) return -1;
    return open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
}

/* Of the commands, `number` is -1; of a device, that of its end. */
static int watch(int descriptor, int number) {
    struct epoll_event event = {.events = EPOLLIN, .data.fd = number};
    return epoll_ctl(watched, EPOLL_CTL_ADD, descriptor, &event);
}

static int add_site(void) {
    char name[16];
    if (sites == SITES) {
        errno = ENOSPC;
        return -1;
    }
    snprintf(name, sizeof name, "site%d", sites);
    int space = namespace();
    int far = space < 0 ? -1 : tun("wan");
    if (setns(spaces[0], CLONE_NEWNET) < 0 || far < 0) return -1;
    int near = tun(name);
    if (near < 0) return -1;
    ends[2 * sites] = near;
    ends[2 * sites + 1] = far;
    if (watch(near, 2 * sites) < 0 || watch(far, 2 * sites + 1) < 0) return -1;
    spaces[++sites] = space;
    return space;
}

static int obey(const char *line) {
    int site, overtake;
    long long delay, jitter;
    if (strcmp(line, "site") == 0) return add_site();
    if (sscanf(line, "delay %d %lld %lld %d", &site, &delay, &jitter, &overtake) == 4 && site >= 0 && site < sites) {
        for (int end = 2 * site; end < 2 * site + 2; end++) {
            directions[end] = (Direction){.delay = delay * 1000, .jitter = jitter * 1000, .overtake = overtake};
        }
        return 0;
    }
    errno = EINVAL;
    return -1;
}

static void answer(int result) {
    if (result < 0) printf("error %s\n", strerror(errno));
    else printf("ok %d\n", result);
    fflush(stdout);
}

/* Obeys the whole lines that have come; 0 at the end of the input. */
static int commands(void) {
    static char text[256];
    static size_t length;
    ssize_t got = read(0, text + length, sizeof text - 1 - length);
    if (got <= 0) return got < 0 && errno == EINTR;
    length += (size_t)got;
    text[length] = 0;
    for (char *end; (end = strchr(text, '\n')) != NULL;) {
        *end = 0;
        answer(obey(text));
        length -= (size_t)(end + 1 - text);
        memmove(text, end + 1, length + 1);
    }
    return length < sizeof text - 1;
}

/* Kills the processes of these namespaces; the number that were found. */
static int kill_inhabitants(void) {
    int found = 0;
    DIR *processes = opendir("/proc");
    for (struct dirent *entry; processes != NULL && (entry = readdir(processes)) != NULL;) {
        char path[64];
        struct stat theirs, ours;
        if (!isdigit((unsigned char)entry->d_name[0]) || atoi(entry->d_name) == getpid()) continue;
        snprintf(path, sizeof path, "/proc/%.20s/ns/net", entry->d_name);
        if (stat(path, &theirs) < 0) continue;
        for (int index = 0; index <= sites; index++) {
            if (fstat(spaces[index], &ours) < 0 || ours.st_ino != theirs.st_ino || ours.st_dev != theirs.st_dev) continue;
            kill(atoi(entry->d_name), SIGKILL);
            found++;
        }
    }
    if (processes != NULL) closedir(processes);
    return found;
}

static void forward(void) {
    for (;;) {
        struct epoll_event ready[BATCH];
        int64_t left = waiting > 0 ? heap[0]->due - now() : 0;
        if (left < 0) left = 0;
        struct timespec limit = {.tv_sec = left / 1000000000, .tv_nsec = left % 1000000000};
        int count = epoll_pwait2(watched, ready, BATCH, waiting > 0 ? &limit : NULL, NULL);
        if (count < 0 && errno != EINTR) return;
        for (int index = 0; index < count; index++) {
            if (ready[index].data.fd >= 0) receive(ready[index].data.fd);
            else if (!commands()) return;
        }
        deliver();
    }
}

/* A wire does not wait for its turn, however busy the machine is. Without the right to that it is less punctual. */
static void become_punctual(void) {
    struct sched_param parameters = {.sched_priority = 1};
    if (sched_setscheduler(0, SCHED_RR, &parameters) < 0 && setpriority(PRIO_PROCESS, 0, -15) < 0) errno = 0;
    prctl(PR_SET_TIMERSLACK, 1000UL);
}

static int enter(char **arguments) {
    int space = open(arguments[0], O_RDONLY | O_CLOEXEC);
    if (space < 0 || setns(space, CLONE_NEWNET) < 0) {
        perror(arguments[0]);
        return 126;
    }
    execvp(arguments[1], arguments + 1);
    perror(arguments[1]);
    return 127;
}

int main(int count, char **arguments) {
    if (count > 3 && strcmp(arguments[1], "enter") == 0) return enter(arguments + 2);
    become_punctual();
    watched = epoll_create1(EPOLL_CLOEXEC);
    spaces[0] = watched < 0 || watch(0, -1) < 0 ? -1 : namespace();
    answer(spaces[0]);
    if (spaces[0] < 0) return 1;
    forward();
    for (int round = 0; round < 50 && kill_inhabitants() > 0; round++) usleep(20000);
    return 0;
}
