#include "trireme/base/progress.hpp"

#include <unistd.h>

#include <atomic>
#include <map>
#include <mutex>
#include <new>

#include "trireme/base/text.hpp"

namespace trireme::base {
namespace {

std::atomic<uint64_t> count{0};
std::atomic<int64_t> answers{0}, tokens{0};

struct FilesAtWork {
  std::mutex mutex;
  std::map<int, std::string> by_thread;
};
FilesAtWork& at_work() {
  static FilesAtWork* const one =
      new FilesAtWork;  // never destroyed: threads may outlive static objects
  return *one;
}

thread_local int depth = 0;

}  // namespace

void tick() noexcept { count.fetch_add(1, std::memory_order_relaxed); }
uint64_t ticks_so_far() noexcept { return count.load(std::memory_order_relaxed); }

void add_written(const Written& more) noexcept {
  answers.fetch_add(more.answers, std::memory_order_relaxed);
  tokens.fetch_add(more.tokens, std::memory_order_relaxed);
}
Written written_so_far() noexcept {
  return {answers.load(std::memory_order_relaxed), tokens.load(std::memory_order_relaxed)};
}

FileWork::FileWork(const char* deed, const std::filesystem::path& path) noexcept {
  if (depth++ > 0) return;
  try {
    std::string words = text(deed, " of ", path.string());
    const std::lock_guard lock(at_work().mutex);
    at_work().by_thread[::gettid()] = std::move(words);
  } catch (const std::bad_alloc&) {  // the file's name is not worth an error
  }
}

FileWork::~FileWork() {
  if (--depth > 0) return;
  const std::lock_guard lock(at_work().mutex);
  at_work().by_thread.erase(::gettid());
}

std::string file_work_of(int thread) {
  const std::lock_guard lock(at_work().mutex);
  const auto found = at_work().by_thread.find(thread);
  return found == at_work().by_thread.end() ? std::string{} : found->second;
}

}  // namespace trireme::base
