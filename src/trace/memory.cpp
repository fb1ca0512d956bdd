#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <string_view>

#include "trireme/base/files.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::trace {

namespace {

// Bytes behind "VmRSS:    1234 kB"; 0 when the line is missing.
int64_t field(std::string_view status, std::string_view name) {
  const size_t at = status.find(name);
  if (at == std::string_view::npos) return 0;
  status.remove_prefix(at + name.size());
  status.remove_prefix(std::min(status.find_first_not_of(" \t"), status.size()));
  int64_t kilobytes = 0;
  std::from_chars(status.data(), status.data() + status.size(), kilobytes);
  return kilobytes * 1024;
}

}  // namespace

Memory host_memory() {
  const base::FileDescriptor file(::open("/proc/self/status", O_RDONLY | O_CLOEXEC));
  char buffer[4096];
  const ssize_t size = file.valid() ? ::read(file.get(), buffer, sizeof buffer) : 0;
  const std::string_view status(buffer, size > 0 ? static_cast<size_t>(size) : 0);
  static std::atomic<int64_t> highest{0};
  const Memory now{field(status, "VmRSS:"), field(status, "VmHWM:")};
  int64_t before = highest.load();
  while (before < now.peak && !highest.compare_exchange_weak(before, now.peak)) {}
  return {now.resident, std::max(before, now.peak)};
}

}  // namespace trireme::trace
