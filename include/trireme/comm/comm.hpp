// Communicators as objects: Comm owns an MPI communicator, CommView is a cheap value that names
// one. Counts are 64-bit at this boundary; every MPI error becomes a UserError that names the call.
// A null view (size 1) makes no MPI call, so code and tests run without a launcher.
//
// Every collective of one communicator is called by all its ranks in the same order; nothing checks
// that, but a watchdog (watchdog.hpp) ends the hang that follows when they are not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "trireme/base/element_type.hpp"
#include "trireme/base/wire.hpp"

struct ompi_communicator_t;

namespace trireme::comm {

// Element types that cross our communicators. bf16 has no MPI type: sums go through an operation of
// our own that adds in fp32 and rounds once per pair.
enum class DType : uint8_t { u8, i32, i64, u64, f32, f64, bf16 };
size_t size_of(DType type);

template <class T>
constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, int32_t>) return DType::i32;
  else if constexpr (std::is_same_v<T, int64_t>) return DType::i64;
  else if constexpr (std::is_same_v<T, uint64_t>) return DType::u64;
  else if constexpr (std::is_same_v<T, float>) return DType::f32;
  else if constexpr (std::is_same_v<T, double>) return DType::f64;
  else {
    static_assert(sizeof(T) == 1, "a type without an MPI counterpart");
    return DType::u8;
  }
}

constexpr DType dtype_of(base::ElementType type) {
  switch (type) {
    case base::ElementType::f32: return DType::f32;
    case base::ElementType::bf16: return DType::bf16;
  }
  return DType::u8;
}

enum class Op : uint8_t { sum, min, max, bit_or };

// Kinds of messages between two ranks (MPI's tag), of the whole program. MPI promises 0 .. 32767.
enum class Tag : int {
  first_flow = 0,  // weightsync numbers the flows of a pair of ranks from here
  last_flow = 30999,
  clock = 31000,
  mail = 31001,       // a piece of a mailbox's message
  mail_room = 31002,  // a message was taken
  life_sign = 31003,  // to rank 0's watchdog
  life_answer = 31004,
  gradients = 31005,       // to the rank that sums them
  weights = 31006,         // new ones, to the rank that takes them for its node
  running_sum = 31007,     // of gradients, from node to node
  gradient_total = 31008,  // to its owner
  gather = 32001,
  all_to_all = 32002,
};

// Completion of a non-blocking transfer. wait() completes it; the destructor of a pending request
// waits as well, so a buffer never dies under a transfer.
class Request {
 public:
  Request();
  Request(Request&&) noexcept;
  Request& operator=(Request&&) noexcept;
  ~Request();
  void wait();
  bool test();

 private:
  friend class CommView;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// From now on ranks compare the collectives that they have called (operation, elements, type, root)
// every so many calls on each communicator; 0: never. Give the same on all ranks, between two
// collectives of all of them.
void compare_collectives(int64_t every);

// Returns when `done` says so; sleeps between looks as sleeping_barrier() does, and counts as
// waiting for other ranks. `what`, for reports of a hang, must live on.
void wait_until(const char* what, const std::function<bool()>& done);

class CommView {
 public:
  CommView() = default;  // one rank, no MPI
  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::string& name() const;
  // An MPI_Comm, for calls of MPI that have no function here (inside comm, NCCL's start among them)
  // and for peers in perf. MPI_COMM_SELF for a null view.
  void* native() const;

  // Collective.
  void barrier() const;
  // The same, but a rank that waits sleeps between looks (up to 1 ms) instead of spinning: for
  // waits of a phase's length while other ranks use the cores. Between looks it calls `meanwhile`:
  // what others need of this rank to come here, or work that it can do until they do; true: there
  // is more of it, and no sleep.
  void sleeping_barrier(const std::function<bool()>& meanwhile = [] { return false; }) const;
  void broadcast(void* data, int64_t count, DType type, int root) const;
  void all_reduce(void* data, int64_t count, DType type, Op op) const;  // in place
  // Rank r's `count` elements already lie at data + r * count.
  void all_gather_in_place(void* data, int64_t count, DType type) const;
  // Byte strings of any length, in rank order; `gather` returns them on `root` and an empty vector
  // elsewhere.
  std::vector<std::string> all_gather(std::string_view mine) const;
  std::vector<std::string> gather(std::string_view mine, int root) const;
  std::string broadcast(std::string text, int root) const;
  // to[r] goes to rank r; returns what each rank sent here.
  std::vector<std::string> all_to_all(const std::vector<std::string>& to) const;

  // Values that base/wire.hpp can write, any number from each rank; collective. all_gather: one
  // rank's behind the other's, in rank order; gather_ragged: by rank.
  template <class T>
  std::vector<std::vector<T>> gather_ragged(std::span<const T> mine) const {
    std::vector<std::vector<T>> all;
    for (const std::string& part : all_gather(base::WireWriter().put_list(mine).take())) {
      all.push_back(base::from_bytes<std::vector<T>>(part));
    }
    return all;
  }
  // To `root` alone; an empty vector elsewhere.
  template <class T>
  std::vector<std::vector<T>> gather_ragged(std::span<const T> mine, int root) const {
    std::vector<std::vector<T>> all;
    for (const std::string& part : gather(base::WireWriter().put_list(mine).take(), root)) {
      all.push_back(base::from_bytes<std::vector<T>>(part));
    }
    return all;
  }
  template <class T>
  std::vector<T> all_gather(std::span<const T> mine) const {
    std::vector<T> all;
    for (auto& part : gather_ragged(mine))
      all.insert(all.end(), std::make_move_iterator(part.begin()),
                 std::make_move_iterator(part.end()));
    return all;
  }
  // The values of to[r] go to rank r; those that come here, in order of the ranks that sent them.
  // Nothing travels where there are none.
  template <class T>
  std::vector<T> all_to_all_values(const std::vector<std::vector<T>>& to) const {
    std::vector<std::string> messages;
    for (const auto& values : to)
      messages.push_back(values.empty() ? std::string() : base::to_bytes(values));
    std::vector<T> all;
    for (const std::string& message : all_to_all(messages)) {
      if (message.empty()) continue;
      auto part = base::from_bytes<std::vector<T>>(message);
      all.insert(all.end(), std::make_move_iterator(part.begin()),
                 std::make_move_iterator(part.end()));
    }
    return all;
  }
  // Point to point. Messages over 2^31 bytes are split inside.
  void send(const void* data, int64_t bytes, int to, Tag tag) const;
  void receive(void* data, int64_t bytes, int from, Tag tag) const;
  Request send_begin(const void* data, int64_t bytes, int to, Tag tag) const;
  Request receive_begin(void* data, int64_t bytes, int from, Tag tag) const;

  // Conveniences on single values; collective.
  template <class T>
  T sum(T value) const {
    all_reduce(&value, 1, dtype_of<T>(), Op::sum);
    return value;
  }
  template <class T>
  T max(T value) const {
    all_reduce(&value, 1, dtype_of<T>(), Op::max);
    return value;
  }
  template <class T>
  T min(T value) const {
    all_reduce(&value, 1, dtype_of<T>(), Op::min);
    return value;
  }
  template <class T>
  T broadcast_value(T value, int root) const {
    if constexpr (base::Plain<T>) {
      broadcast(&value, sizeof(T), DType::u8, root);
      return value;
    } else {
      return base::from_bytes<T>(
          broadcast(rank_ == root ? base::to_bytes(value) : std::string{}, root));
    }
  }
  template <class T>
  std::vector<T> gather_values(T value) const {  // all ranks receive all values
    if constexpr (base::Plain<T>) {
      std::vector<T> all(static_cast<size_t>(size_));
      all[static_cast<size_t>(rank_)] = value;
      all_gather_in_place(all.data(), sizeof(T), DType::u8);
      return all;
    } else {
      return all_gather(std::span<const T>(&value, 1));
    }
  }
  // The same; a rank that waits sleeps between looks, as in sleeping_barrier(): behind work that
  // takes one rank longer than another.
  template <base::Plain T>
  std::vector<T> sleeping_gather_values(T value) const {
    std::vector<T> all(static_cast<size_t>(size_));
    all[static_cast<size_t>(rank_)] = value;
    sleeping_all_gather_in_place(all.data(), sizeof(T));
    return all;
  }
  // True when `condition` holds on every rank. Collective.
  bool all(bool condition) const { return min<int32_t>(condition ? 1 : 0) == 1; }

 private:
  friend class Comm;
  friend class Session;
  struct State;
  struct Noted;
  void sleeping_all_gather_in_place(void* data, int bytes) const;
  // All ranks, behind the same number of calls: throws InternalError on all of them, with the first
  // call that differs.
  void compare_calls() const;
  std::shared_ptr<State> state_;
  int rank_ = 0;
  int size_ = 1;
};

// Owns a communicator together with the views of it: the last of them frees it, which is collective
// over its ranks, so owners and what holds views die in the same order everywhere.
class Comm {
 public:
  Comm() = default;  // null: one rank
  Comm(Comm&&) noexcept = default;
  Comm& operator=(Comm&&) noexcept = default;
  ~Comm();

  CommView view() const { return view_; }
  operator const CommView&() const { return view_; }
  const CommView* operator->() const { return &view_; }

  // Collective over `parent`. Ranks of one colour get a communicator ordered by key; colour < 0
  // gets a null Comm.
  static Comm split(const CommView& parent, int colour, int key, const std::string& name);
  static Comm duplicate(const CommView& parent, const std::string& name);
  // The ranks listed (of `parent`, in that order); others get a null Comm. Collective over
  // `parent`.
  static Comm subset(const CommView& parent, std::span<const int> ranks, const std::string& name);

 private:
  friend class Session;
  CommView view_;
};

}  // namespace trireme::comm
