#include "comm/ledger.hpp"

#include <atomic>
#include <cstring>
#include <string_view>

#include "trireme/base/hash.hpp"
#include "trireme/base/text.hpp"
#include "trireme/comm/comm.hpp"

namespace trireme::comm {
namespace {

std::atomic<int64_t> calls_between{0};

template <class T>
uint64_t mix_number(uint64_t hash, T value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  return base::fnv1a({bytes, sizeof bytes}, hash);
}

}  // namespace

void compare_collectives(int64_t every) { calls_between = every; }

void Ledger::note(const char* operation, int64_t count, int type, int root) {
  Entry& entry = entries_[static_cast<size_t>(calls_ % kept)];
  entry = {};
  std::strncpy(entry.operation, operation, sizeof entry.operation - 1);
  entry.count = count;
  entry.type = type;
  entry.root = root;
  ++calls_;
  hash_ = mix_number(mix_number(mix_number(base::fnv1a(entry.operation, hash_), count), entry.type),
                     entry.root);
}

bool Ledger::due() const {
  const int64_t every = calls_between.load(std::memory_order_relaxed);
  return every > 0 && calls_ % every == 0;
}

std::string Ledger::describe(const Entry& entry) {
  return base::text(entry.operation, " of ", entry.count, " elements (type ", entry.type,
                    entry.root < 0 ? std::string{} : base::text(", root ", entry.root), ")");
}

}  // namespace trireme::comm
