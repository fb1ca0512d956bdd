// Claim files of a run folder: `.run.lock.<fence>`. A claim appears complete and for one process
// only (link(2) of a finished file); the greatest fence is the holder.
#pragma once

#include <cstdint>
#include <ctime>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "trireme/checkpoint/run_lock.hpp"

namespace trireme::checkpoint {

struct Claim {
  std::filesystem::path path;
  LockHolder holder;
  double modified = 0;  // seconds, by the clock that stamps the folder's files: when its content
                        // was written, a heartbeat for instance
  double changed =
      0;  // when anything of the file was: later than `modified` where a copy kept that
};

// The largest fence that fits in a claim's name. Fences are counted up by one, so nobody comes
// here.
inline constexpr int64_t largest_fence = 999'999'999'999'999'999;

std::filesystem::path claim_path(const std::filesystem::path& folder, int64_t fence);
// Fences that are claimed, greatest first.
std::vector<int64_t> claimed_fences(const std::filesystem::path& folder);
// The holder; nullopt when nobody ever held the lock.
std::optional<Claim> current_claim(const std::filesystem::path& folder);

// Claims `holder.fence` when nobody has. False: somebody else was faster.
bool try_claim(const std::filesystem::path& folder, const LockHolder& holder);
// Replaces the claim of its owner, e.g. to mark it released.
void rewrite_claim(const std::filesystem::path& folder, const LockHolder& holder);
void remove_claims_below(const std::filesystem::path& folder, int64_t fence);

// "Now" by the clock that stamps the folder's files: clocks of hosts differ.
double server_time(const std::filesystem::path& folder);

std::string to_json(const LockHolder& holder);

}  // namespace trireme::checkpoint
