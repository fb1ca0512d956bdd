// Inside of the fake NCCL: communicators, and what its sources share.
#pragma once

#include <nccl.h>

#include <optional>
#include <set>
#include <utility>

#include "fakegpu/machine.hpp"
#include "fakegpu/segment.hpp"

struct ncclComm {
  using Flag = std::shared_ptr<std::atomic<bool>>;
  ncclComm(const std::string& its_name, int its_rank, int its_size, bool blocks, Flag its_flag);

  const std::string name;
  const int rank, size;
  const bool blocking;
  const Flag
      aborted;  // one for all that were split off from each other: they share what NCCL aborts
  trireme::fakegpu::Segment segment;
  int splits = 0;
  std::atomic<ncclResult_t> status{ncclSuccess};
  std::atomic<int> on_streams{0};  // collectives that are not over
  int calls = 0;
  bool finalized = false;
  std::minstd_rand random;
  std::set<std::pair<const void*, size_t>*> registrations;
  std::set<cudaStream_t> streams;  // that had its collectives
  // A copy is with each recording that has its collectives; all of them are gone before it is
  // freed.
  const std::shared_ptr<int> recorded = std::make_shared<int>();

  // A call of a communicator that does not block, as in NCCL: a thread does the work, and the
  // ncclCommGetAsyncError() that sees its end joins and frees it. Without a lock: one thread
  // operates a communicator at a time.
  struct Job {
    std::thread thread;
    std::atomic<bool> joined{false};
    std::atomic<int> references{1};
  };
  Job* job = nullptr;
};

namespace trireme::fakegpu {

void count(int NcclCounts::*what);
ncclResult_t refuse(ncclResult_t result, const std::string& words);
// An error that is found behind the caller's back.
void report(ncclComm_t comm, ncclResult_t result, const std::string& words);
// ncclSuccess where the communicator takes a call.
ncclResult_t ready(ncclComm_t comm);
// Does the work of a call: here and now, or behind the caller's back where the communicator does
// not block. False of it: the call failed.
ncclResult_t carry_out(ncclComm_t comm, std::function<bool()> work);
Faults current_faults();

// Whether the calling thread is between ncclGroupStart() and ncclGroupEnd().
bool in_group();
// Enqueues the collectives, or the messages, that were called in the group.
ncclResult_t submit_group();
bool messages_wait();  // for the end of the group
ncclResult_t submit_messages();
void drop_messages();
// Runs a call in the order of its stream, unless it is one that a fault is wanted at.
void run_call(ncclComm_t comm, const std::function<Segment::Outcome()>& exchange);
// How far into a symmetric window of the communicator these bytes begin; nullopt: they are in none.
std::optional<size_t> place_in_window(ncclComm_t comm, const void* values, size_t bytes);
void end_windows(ncclComm_t comm);  // with the communicator
// Recordings are told apart by the stream that they were made on.
void note_stream(ncclComm_t comm, cudaStream_t stream);

}  // namespace trireme::fakegpu
