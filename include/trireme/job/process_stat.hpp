// What Linux says of a process or thread in its file `stat` (proc(5)).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace trireme::job {

inline constexpr int stat_user_ticks = 14;  // processor time
inline constexpr int stat_system_ticks = 15;
inline constexpr int stat_start_ticks = 22;  // after boot

// A field of `file` ("/proc/self/stat") by its number there, from 4 on; nullopt: no such process.
std::optional<int64_t> stat_field(const std::filesystem::path& file, int number);

}  // namespace trireme::job
