// A rank that leaves later than the others, by LD_PRELOAD: when the program `trireme` ends by itself as rank SLOW_EXIT_RANK, that takes
// a second and a half longer.
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

__attribute__((destructor)) static void linger(void) {
  static const char* const names[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID"};
  const char* late = getenv("SLOW_EXIT_RANK");
  const char* rank = NULL;
  for (size_t i = 0; i < sizeof names / sizeof *names && rank == NULL; ++i) rank = getenv(names[i]);
  if (late == NULL || rank == NULL || strcmp(late, rank) != 0 || strncmp(program_invocation_short_name, "trireme", 7) != 0) return;
  struct timespec nap = {1, 500000000};
  while (nanosleep(&nap, &nap) != 0) {
  }
}
