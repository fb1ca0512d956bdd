#include "trireme/base/fault_gates.hpp"

#include <fcntl.h>

#include <cerrno>
#include <chrono>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "trireme/base/files.hpp"

namespace trireme::base {
namespace {

struct Folder {
  std::mutex mutex;
  std::filesystem::path path = ".";
};

Folder& folder() {
  static Folder one;
  return one;
}

std::filesystem::path gate_file(int number) {
  const std::lock_guard lock(folder().mutex);
  return folder().path / (".gate-" + std::to_string(number));
}

}  // namespace

void set_gate_folder(std::filesystem::path path) {
  const std::lock_guard lock(folder().mutex);
  folder().path = std::move(path);
}

void open_gate(int number) {
  const std::filesystem::path path = gate_file(number);
  const FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
  if (!file.valid()) throw_errno(errno, "open the gate", path);
}

void wait_for_gate(int number) {
  const std::filesystem::path path = gate_file(number);
  std::error_code ignored;
  while (!std::filesystem::exists(path, ignored))
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
}

}  // namespace trireme::base
