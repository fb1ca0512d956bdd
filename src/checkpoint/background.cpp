#include "trireme/checkpoint/background.hpp"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "save_through.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/log.hpp"
#include "trireme/base/text.hpp"
#include "trireme/trace/activity.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::checkpoint {
namespace {

// Who may touch a dataset: the writer thread while it writes, the caller afterwards.
class SharedData : public DataGate {
 public:
  void reset(const Content& content, int64_t most_aside) {
    const std::lock_guard lock(mutex_);
    most_aside_ = most_aside;
    aside_ = peak_ = 0;
    parts_.assign(content.datasets.size(), Part{});
    for (size_t i = 0; i < parts_.size(); ++i) {
      const Dataset& dataset = content.datasets[i];
      const auto elements =
          static_cast<size_t>(dataset.block.empty() ? 0 : dataset.block.elements());
      parts_[i].data = static_cast<const std::byte*>(dataset.data);
      parts_[i].bytes = elements * comm::size_of(dataset.type);
    }
    copied_ = 0;
  }

  const void* begin_write(size_t i, const void*) override {
    const std::lock_guard lock(mutex_);
    parts_[i].stage = Stage::writing;
    return parts_[i].aside.empty() ? parts_[i].data : parts_[i].aside.data();
  }

  void end_write(size_t i) override {
    const std::lock_guard lock(mutex_);
    parts_[i].stage = Stage::written;
    aside_ -= static_cast<int64_t>(parts_[i].aside.size());
    std::vector<std::byte>().swap(parts_[i].aside);
    changed_.notify_all();
  }

  // After a save ended, with or without success: nobody waits for it.
  void release_all() {
    const std::lock_guard lock(mutex_);
    for (Part& part : parts_) {
      part = Part{};
      part.stage = Stage::written;
    }
    aside_ = 0;
    changed_.notify_all();
  }

  void before_change(size_t i) {
    std::unique_lock lock(mutex_);
    if (i >= parts_.size()) return;
    Part& part = parts_[i];
    const auto bytes = static_cast<int64_t>(part.bytes);
    const auto safe = [&] {
      return part.stage == Stage::written || bytes == 0 || !part.aside.empty();
    };
    const auto room = [&] {
      return part.stage == Stage::waiting && (aside_ == 0 || aside_ + bytes <= most_aside_);
    };
    changed_.wait(lock, [&] { return safe() || room(); });
    if (safe()) return;
    part.aside.assign(part.data, part.data + part.bytes);
    copied_ += bytes;
    aside_ += bytes;
    peak_ = std::max(peak_, aside_);
  }

  bool written(size_t i) const {
    const std::lock_guard lock(mutex_);
    return i >= parts_.size() || parts_[i].stage == Stage::written || parts_[i].bytes == 0 ||
           !parts_[i].aside.empty();
  }

  int64_t copied() const {
    const std::lock_guard lock(mutex_);
    return copied_;
  }
  int64_t peak() const {
    const std::lock_guard lock(mutex_);
    return peak_;
  }

 private:
  enum class Stage : uint8_t { waiting, writing, written };
  struct Part {
    Stage stage = Stage::waiting;
    const std::byte* data = nullptr;
    size_t bytes = 0;
    std::vector<std::byte> aside;
  };
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Part> parts_;
  int64_t copied_ = 0;  // bytes, in all
  int64_t aside_ = 0;   // bytes, now
  int64_t peak_ = 0;
  int64_t most_aside_ = 0;
};

struct Job {
  std::filesystem::path folder;
  int64_t step = 0;
  Content content;
  SaveOptions options;
  int64_t most_aside = 0;
};

}  // namespace

class BackgroundWriter::State {
 public:
  State(const comm::CommView& comm, bool thread_multiple)
      : comm_(comm::Comm::duplicate(comm, "checkpoint")), threaded_(thread_multiple) {
    if (threaded_) {
      thread_ = std::thread([this] { serve(); });
    } else if (comm.rank() == 0) {
      log::info(
          "checkpoints are saved in the foreground (the MPI library gives no MPI_THREAD_MULTIPLE)");
    }
  }

  ~State() {
    if (!threaded_) return;
    {
      const std::lock_guard lock(mutex_);
      leaving_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }

  void start(Job job) {
    wait();
    data_.reset(job.content, job.most_aside);
    if (!threaded_) {
      work(job);
      wait();  // throws here and now what the save threw
      return;
    }
    {
      const std::lock_guard lock(mutex_);
      job_ = std::move(job);
      busy_ = true;
    }
    wake_.notify_all();
  }

  void before_change(size_t i) {
    const trace::WaitForThread waiting{writer_at_work()};
    data_.before_change(i);
  }

  SaveReport wait() {
    const trace::WaitForThread waiting{writer_at_work()};
    std::unique_lock lock(mutex_);
    idle_.wait(lock, [&] { return !busy_; });
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
    return report_;
  }

  bool busy() const {
    const std::lock_guard lock(mutex_);
    return busy_;
  }
  std::optional<double> last_seconds() const {
    const std::lock_guard lock(mutex_);
    return committed_ > 0 ? std::optional(report_.seconds) : std::nullopt;
  }
  int64_t committed() const {
    const std::lock_guard lock(mutex_);
    return committed_;
  }
  SharedData& data() { return data_; }

 private:
  // As the trace names it; -1: it has nothing to do.
  int writer_at_work() const { return busy() ? writer_.load() : -1; }

  void serve() {
    trace::name_thread("checkpoint");
    writer_ = trace::this_thread();
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return job_.has_value() || leaving_; });
      if (!job_) return;
      const Job job = *std::exchange(job_, std::nullopt);
      lock.unlock();
      work(job);
      lock.lock();
    }
  }

  // Errors wait for the next wait(); they are agreed, so every rank finds one.
  void work(const Job& job) {
    SaveReport report;
    std::exception_ptr error;
    try {
      report = save_through(comm_.view(), job.folder, job.step, job.content, job.options, data_);
    } catch (...) { error = std::current_exception(); }
    data_.release_all();
    const std::lock_guard lock(mutex_);
    if (!error) {
      report_ = report;
      ++committed_;
    }
    error_ = error;
    busy_ = false;
    idle_.notify_all();
  }

  comm::Comm comm_;
  bool threaded_;
  SharedData data_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable idle_;
  std::optional<Job> job_;
  bool busy_ = false;
  bool leaving_ = false;
  SaveReport report_;
  int64_t committed_ = 0;
  std::exception_ptr error_;
  std::atomic<int> writer_{-1};
  std::thread thread_;
};

BackgroundWriter::BackgroundWriter(const comm::CommView& comm, bool thread_multiple)
    : state_(std::make_unique<State>(comm, thread_multiple)) {}
BackgroundWriter::~BackgroundWriter() = default;

void BackgroundWriter::start(std::filesystem::path folder, int64_t step, Content content,
                             SaveOptions options, int64_t most_aside) {
  state_->start({std::move(folder), step, std::move(content), std::move(options), most_aside});
}
void BackgroundWriter::before_change(size_t i) { state_->before_change(i); }
bool BackgroundWriter::written(size_t i) const { return state_->data().written(i); }
bool BackgroundWriter::busy() const { return state_->busy(); }
SaveReport BackgroundWriter::wait() { return state_->wait(); }
std::optional<double> BackgroundWriter::last_seconds() const { return state_->last_seconds(); }
int64_t BackgroundWriter::committed() const { return state_->committed(); }
int64_t BackgroundWriter::copied_aside() const { return state_->data().copied(); }
int64_t BackgroundWriter::peak_aside() const { return state_->data().peak(); }
std::string BackgroundWriter::copies_in_words() const {
  if (copied_aside() == 0) return {};
  const auto words = [](int64_t bytes) { return base::human_bytes(static_cast<double>(bytes)); };
  return base::text("; steps copied ", words(copied_aside()), " before they changed it, at most ",
                    words(peak_aside()), " at a time");
}

}  // namespace trireme::checkpoint
