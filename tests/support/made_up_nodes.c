/* One machine as several nodes, by LD_PRELOAD: RANKS_OF_NODE=2 ranks of a communicator share memory with each other and with nobody else. */
#include <mpi.h>
#include <stdlib.h>

int MPI_Comm_split_type(MPI_Comm comm, int type, int key, MPI_Info info, MPI_Comm* made) {
  const char* text = getenv("RANKS_OF_NODE");
  const int ranks = text ? atoi(text) : 0;
  int rank = 0;
  if (ranks <= 0 || type != MPI_COMM_TYPE_SHARED) return PMPI_Comm_split_type(comm, type, key, info, made);
  PMPI_Comm_rank(comm, &rank);
  return PMPI_Comm_split(comm, rank / ranks, key, made);
}
