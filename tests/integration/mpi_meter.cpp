#include "mpi_meter.hpp"

#include <mpi.h>

#include <atomic>

namespace {

std::atomic<int64_t> bytes{0};

void count(int elements, MPI_Datatype type) {
  MPI_Count size = 0;
  PMPI_Type_size_x(type, &size);
  bytes += static_cast<int64_t>(size) * elements;
}

}  // namespace

namespace trireme::test {

int64_t bytes_given_to_mpi() { return bytes; }

}  // namespace trireme::test

extern "C" {

int MPI_Send(const void* data, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm) {
  count(n, type);
  return PMPI_Send(data, n, type, to, tag, comm);
}
int MPI_Isend(const void* data, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request* request) {
  count(n, type);
  return PMPI_Isend(data, n, type, to, tag, comm, request);
}
int MPI_Bcast(void* data, int n, MPI_Datatype type, int root, MPI_Comm comm) {
  count(n, type);
  return PMPI_Bcast(data, n, type, root, comm);
}
int MPI_Reduce(const void* data, void* out, int n, MPI_Datatype type, MPI_Op op, int root,
               MPI_Comm comm) {
  count(n, type);
  return PMPI_Reduce(data, out, n, type, op, root, comm);
}
int MPI_Allreduce(const void* data, void* out, int n, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
  count(n, type);
  return PMPI_Allreduce(data, out, n, type, op, comm);
}
int MPI_Iallreduce(const void* data, void* out, int n, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
                   MPI_Request* request) {
  count(n, type);
  return PMPI_Iallreduce(data, out, n, type, op, comm, request);
}
int MPI_Reduce_scatter_block(const void* data, void* out, int n, MPI_Datatype type, MPI_Op op,
                             MPI_Comm comm) {
  int ranks = 1;
  PMPI_Comm_size(comm, &ranks);
  count(n * ranks, type);
  return PMPI_Reduce_scatter_block(data, out, n, type, op, comm);
}
int MPI_Allgather(const void* data, int n, MPI_Datatype type, void* out, int m, MPI_Datatype into,
                  MPI_Comm comm) {
  count(data == MPI_IN_PLACE ? m : n, data == MPI_IN_PLACE ? into : type);
  return PMPI_Allgather(data, n, type, out, m, into, comm);
}
int MPI_Iallgather(const void* data, int n, MPI_Datatype type, void* out, int m, MPI_Datatype into,
                   MPI_Comm comm, MPI_Request* request) {
  count(data == MPI_IN_PLACE ? m : n, data == MPI_IN_PLACE ? into : type);
  return PMPI_Iallgather(data, n, type, out, m, into, comm, request);
}
int MPI_Allgatherv(const void* data, int n, MPI_Datatype type, void* out, const int counts[],
                   const int places[], MPI_Datatype into, MPI_Comm comm) {
  int rank = 0;
  PMPI_Comm_rank(comm, &rank);
  count(data == MPI_IN_PLACE ? counts[rank] : n, data == MPI_IN_PLACE ? into : type);
  return PMPI_Allgatherv(data, n, type, out, counts, places, into, comm);
}
int MPI_Alltoall(const void* data, int n, MPI_Datatype type, void* out, int m, MPI_Datatype into,
                 MPI_Comm comm) {
  int ranks = 1;
  PMPI_Comm_size(comm, &ranks);
  count(n * ranks, type);
  return PMPI_Alltoall(data, n, type, out, m, into, comm);
}
}
