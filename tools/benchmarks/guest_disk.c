/* What a guest's program sees of its disk: one request after the other, past the guest's own cache.
   guest-disk DEVICE r|w r|s KIB SECONDS BEGIN_MIB LENGTH_MIB SEED: random or in sequence; one line of figures. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 1000000 };

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}

static int compare(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

int main(int count, char **given) {
  if (count != 9) return 2;
  int writes = given[2][0] == 'w', random = given[3][0] == 'r';
  long long size = atoll(given[4]) << 10, begin = atoll(given[6]) << 20, places = (atoll(given[7]) << 20) / size;
  double seconds = atof(given[5]), *took = malloc(MOST * sizeof *took);
  uint64_t state = strtoull(given[8], 0, 10) * 2654435761u + 1;
  int file = open(given[1], (writes ? O_WRONLY : O_RDONLY) | O_DIRECT);
  char *block;
  if (file < 0 || !took || posix_memalign((void **)&block, 4096, size)) return 1;
  memset(block, 0x5a, size);
  long done = 0;
  long long place = state % places;
  double started = now(), last = started;
  while (last - started < seconds && done < MOST) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    place = random ? (long long)(state % places) : (place + 1) % places;
    memcpy(block, &state, sizeof state);
    long long at = begin + place * size;
    if ((writes ? pwrite(file, block, size, at) : pread(file, block, size, at)) != size) return 1;
    double here = now();
    took[done++] = here - last;
    last = here;
  }
  qsort(took, done, sizeof *took, compare);
  printf("figures %.3f %.1f %.1f\n", done * size / 1048576.0 / (last - started), took[done / 2] * 1e6,
         took[done * 99 / 100] * 1e6);
}
