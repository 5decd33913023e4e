// Loaded into a server before the C library, it moves the wall clock by as many
// nanoseconds as the file CLOCK_SHIFT says, which is read again at every look at the clock.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *shift;

__attribute__((constructor)) static void map_shift(void) {
	const char *path = getenv("CLOCK_SHIFT");
	int fd = path ? open(path, O_RDONLY) : -1;
	if (fd < 0) return;
	void *p = mmap(NULL, sizeof *shift, PROT_READ, MAP_SHARED, fd, 0);
	if (p != MAP_FAILED) shift = p;
	close(fd);
}

int clock_gettime(clockid_t id, struct timespec *t) {
	if (syscall(SYS_clock_gettime, id, t) != 0) return -1;
	if (shift && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) {
		int64_t ns = (int64_t)t->tv_sec * 1000000000 + t->tv_nsec + *shift;
		t->tv_sec = ns / 1000000000;
		t->tv_nsec = ns % 1000000000;
	}
	return 0;
}

int gettimeofday(struct timeval *t, void *zone) {
	struct timespec now;
	(void)zone;
	if (clock_gettime(CLOCK_REALTIME, &now) != 0) return -1;
	t->tv_sec = now.tv_sec;
	t->tv_usec = now.tv_nsec / 1000;
	return 0;
}

time_t time(time_t *t) {
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	if (t) *t = now.tv_sec;
	return now.tv_sec;
}
