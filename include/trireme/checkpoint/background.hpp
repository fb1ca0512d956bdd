// A save beside training. Shards do not change between a save and the next optimizer step, so the
// writer reads them where they are; an optimizer that overtakes it says so and that tensor is
// copied aside first, as far as copies are allowed, or waited for.
//
// One writer thread per rank writes that rank's rows, rank 0's also lays the file out, which are
// all calls of HDF5 while training goes on. The threads use a communicator of their own, so they
// need MPI_THREAD_MULTIPLE.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "trireme/checkpoint/writer.hpp"

namespace trireme::checkpoint {

class BackgroundWriter {
 public:
  // Collective over `comm` (it is duplicated). `thread_multiple` is false where MPI gives less:
  // saves are then made inside start(), and the log says so once.
  BackgroundWriter(const comm::CommView& comm, bool thread_multiple);
  BackgroundWriter(const BackgroundWriter&) = delete;
  // Waits for a save in progress; collective over the communicator it was made with.
  ~BackgroundWriter();

  // Starts a save; collective, and returns once the thread has the work. A save still in progress
  // is waited for first, so the errors of the one before may be thrown here. The data must stay
  // readable until wait() or before_change(). `most_aside`: bytes that before_change() may hold in
  // copies at a time; one dataset may always be.
  void start(std::filesystem::path folder, int64_t step, Content content, SaveOptions options,
             int64_t most_aside);

  // Must be called before dataset `i` of the content given to start() changes: returns at once when
  // it is written or no save runs; waits while it is being written; otherwise copies it aside,
  // behind the copies that have to be written before there is room for it. Datasets are written in
  // their order: call it in that order. Not collective, any thread.
  void before_change(size_t i);
  // Whether dataset `i` has left the caller's memory.
  bool written(size_t i) const;

  bool busy() const;
  // Waits for the save in progress and returns its report (the last one when none runs); throws
  // the save's error. Every rank throws alike.
  SaveReport wait();
  // Seconds of the last save that was committed, from its start; nullopt: none yet. Says nothing of
  // a save in progress. Any thread.
  std::optional<double> last_seconds() const;
  // Saves that were committed so far. Any thread.
  int64_t committed() const;
  // Bytes that before_change() copied in the last save, and the most that were held at a time.
  int64_t copied_aside() const;
  int64_t peak_aside() const;
  // Both, to be put behind what is said of the save; empty where nothing was copied.
  std::string copies_in_words() const;

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace trireme::checkpoint
