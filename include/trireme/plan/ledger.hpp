// The memory ledger of a rank: every buffer that the program holds, with its owner, place, size and
// the phases in which it lives. Plain integers: no MPI, no tensors, no device.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::plan {

enum class Place : uint8_t { device, host };

// Phases of a rank's iteration, in order; `start` is the state before the first one.
enum class Phase : uint8_t {
  start,
  rollout,
  reward,
  log_probs,
  forward,
  head,
  backward,
  step,
  sync,
  save
};
inline constexpr int phase_count = 10;
const char* to_string(Phase phase);

// Sets of phases: bit i is Phase(i).
using PhaseSet = uint32_t;
constexpr PhaseSet phase_bit(Phase phase) { return PhaseSet{1} << static_cast<unsigned>(phase); }
inline constexpr PhaseSet every_phase = (PhaseSet{1} << phase_count) - 1;

// exact: the size that the program allocates, byte for byte (without an allocator's rounding);
// estimate: from the shapes of what LibTorch and the libraries below it allocate.
enum class Accuracy : uint8_t { exact, estimate };

// What takes it, as a device's memory can be told apart when a job runs: LibTorch's allocator, the
// exchanges' buffers, and what libraries take by themselves.
enum class Kind : uint8_t { tensors, exchanges, libraries };
inline constexpr int kind_count = 3;
const char* to_string(Kind kind);

struct Entry {
  std::string owner;  // "actor", "generator", "process", ...
  std::string what;   // "fp32 master weights"
  Place place = Place::device;
  int64_t bytes = 0;
  PhaseSet phases = every_phase;
  Accuracy accuracy = Accuracy::exact;
  int64_t mapped = 0;  // bytes of other ranks' parts of the same shared window: this process'
                       // resident set shows them, too
  Kind kind = Kind::tensors;
};

class Ledger {
 public:
  // Entries of no bytes are left out.
  void add(Entry entry);
  const std::vector<Entry>& entries() const { return entries_; }
  int64_t bytes(Place place, Phase phase) const;
  // Of the entries of one accuracy.
  int64_t bytes(Place place, Phase phase, Accuracy accuracy) const;
  // The largest resident set that this rank's entries on the host make: each window counts whole.
  int64_t resident_peak() const;
  Phase peak_phase(Place place) const;  // the first of the largest
  int64_t peak(Place place) const { return bytes(place, peak_phase(place)); }
  int64_t peak(Place place, Kind kind) const;  // in the phase that has most of this kind
  // Of a phase, largest first.
  std::vector<Entry> largest(Place place, Phase phase, size_t count) const;

 private:
  std::vector<Entry> entries_;
};

}  // namespace trireme::plan
