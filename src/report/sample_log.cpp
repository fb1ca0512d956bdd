#include "trireme/report/sample_log.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "report/grown_file.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"
#include "trireme/base/log.hpp"
#include "trireme/base/progress.hpp"
#include "trireme/base/text.hpp"
#include "trireme/config/reward_sources.hpp"
#include "trireme/data/jsonl.hpp"
#include "trireme/report/side_output.hpp"

namespace trireme::report {
namespace {

// What reward sources and the environment said of sequence `s`.
std::string metrics_json(const Samples& samples, size_t s) {
  data::JsonObject out;
  for (const auto& [name, values] : samples.reward_metrics) {
    if (!std::isnan(values[s])) out.add(name, double{values[s]});
  }
  for (const auto& [name, values] : samples.episode_metrics) {
    if (!std::isnan(values[s]))
      out.add(base::text(config::environment_source, "/", name), double{values[s]});
  }
  return out.str();
}

// Question and answers of each judge about sequence `s`.
std::string judgements_json(const Samples& samples, size_t s) {
  data::JsonObject out;
  for (const auto& [source, objects] : samples.judgements) {
    if (!objects[s].empty()) out.add_json(source, objects[s]);
  }
  return out.str();
}

// Includes the environment's text before the first turn.
std::string prompt_of_episode(const Samples& samples, int64_t i, const text::Tokenizer& tokenizer) {
  const auto length = static_cast<size_t>(samples.prompt_len[static_cast<size_t>(i)]);
  return tokenizer.decode(samples.tokens_of(i).first(length), text::Skip::nothing);
}

// For each turn: the policy's text, its reward, and the environment's answer.
std::string turns_json(const Samples& samples, int64_t i, const text::Tokenizer& tokenizer) {
  const auto ids = samples.tokens_of(i);
  const auto is_action = [&](int64_t t) {
    return samples.action_mask[static_cast<size_t>(samples.begin(i) + t)] != 0;
  };
  const auto decoded = [&](int64_t from, int64_t to) {
    return tokenizer.decode(ids.subspan(static_cast<size_t>(from), static_cast<size_t>(to - from)),
                            text::Skip::nothing);
  };
  std::string out;
  int64_t next = samples.prompt_len[static_cast<size_t>(i)];
  for (const Turn& turn : samples.turns[static_cast<size_t>(i)]) {
    const int64_t end = std::min<int64_t>(turn.end, samples.length(i));
    const int64_t begin = std::min(next, end);
    for (next = end; next < samples.length(i) && !is_action(next);) ++next;
    data::JsonObject one;
    one.add("response", decoded(begin, end)).add("reward", double{turn.reward});
    one.add("finish_reason", to_string(turn.finish_reason));
    if (next > end) one.add("observation", decoded(end, next));
    out += (out.empty() ? "" : ",") + one.str();
  }
  return "[" + out + "]";
}

}  // namespace

void append_sample_log(const comm::CommView& world, const SampleLog& log, const Samples& samples,
                       int64_t iteration) {
  const auto& [path, prompts, tokenizer, count, sources] = log;
  // Each rank offers those of its `count` smallest ids; the smallest ids of all are among them.
  std::vector<int64_t> rows(static_cast<size_t>(samples.size()));
  std::iota(rows.begin(), rows.end(), int64_t{0});
  std::ranges::sort(rows, {}, [&](int64_t i) { return samples.id[static_cast<size_t>(i)]; });
  if (count >= 0 && count < samples.size()) rows.resize(static_cast<size_t>(count));
  const auto parts = world.gather(samples.select(rows).to_bytes(), 0);
  if (world.rank() != 0) return;
  Samples all;
  for (const auto& part : parts) {
    const Samples one = Samples::from_bytes(part);
    for (int64_t i = 0; i < one.size(); ++i) all.append(one, i);
  }
  all = all.sorted();
  std::string lines;
  for (int64_t i = 0; i < all.size() && (count < 0 || i < count); ++i) {
    const auto s = static_cast<size_t>(i);
    const auto response = all.tokens_of(i).subspan(static_cast<size_t>(all.prompt_len[s]));
    data::JsonObject line;
    line.add("iteration", iteration).add("id", static_cast<int64_t>(all.id[s]));
    line.add("prompt", all.turns.empty() ? prompts[all.prompt_row[s]].prompt
                                         : prompt_of_episode(all, i, tokenizer));
    line.add("response", tokenizer.decode(response, text::Skip::nothing));
    line.add("output_ids", response);
    line.add("label", prompts[all.prompt_row[s]].label);
    line.add("reward", double{all.reward[s]});
    if (sources.size() > 1 && sources.size() == all.reward_parts.size()) {
      data::JsonObject by_source;
      for (size_t p = 0; p < sources.size(); ++p)
        by_source.add(sources[p], double{all.reward_parts[p][s]});
      line.add_json("parts", by_source.str());
    }
    if (!all.turns.empty()) line.add_json("turns", turns_json(all, i, tokenizer));
    if (const std::string said = metrics_json(all, s); said != "{}") line.add_json("metrics", said);
    if (const std::string said = judgements_json(all, s); said != "{}")
      line.add_json("judgements", said);
    line.add("finish_reason", to_string(all.finish_reason[s]));
    lines += line.str() + '\n';
  }
  side_output(path.filename().string(), [&] { append_to(path, lines); });
}

namespace {

// Every line begins {"iteration": N.
bool is_beyond(const std::string& head, int64_t iteration) {
  constexpr std::string_view key = "{\"iteration\":";
  return head.starts_with(key) && std::strtoll(head.c_str() + key.size(), nullptr, 10) > iteration;
}

// Bytes in front of the first line of a later iteration, or of a last line that a kill cut short.
// The file may be larger than the memory, and so may be a line of it.
uint64_t bytes_to_keep(int file, const std::filesystem::path& path, int64_t iteration) {
  constexpr size_t head_bytes = 64;
  std::vector<char> buffer(size_t{1} << 20);
  std::string head;
  uint64_t line = 0;  // where it begins
  uint64_t offset = 0;
  for (ssize_t n = 0; (n = ::read(file, buffer.data(), buffer.size())) != 0;) {
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) base::throw_errno(errno, "read", path);
    const std::string_view chunk(buffer.data(), static_cast<size_t>(n));
    for (size_t at = 0; at < chunk.size();) {
      const size_t end = std::min(chunk.find('\n', at), chunk.size());
      head += chunk.substr(at, std::min(end - at, head_bytes - head.size()));
      const bool whole_head = head.size() == head_bytes || end < chunk.size();
      if (whole_head && is_beyond(head, iteration)) return line;
      at = end + 1;
      if (end == chunk.size()) continue;
      line = offset + at;
      head.clear();
    }
    offset += chunk.size();
  }
  return line;
}

}  // namespace

void sync_sample_log(const std::filesystem::path& path) {
  const base::FileWork work{"sync", path};
  const base::FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!file.valid() && errno == ENOENT) return;
  if (!file.valid()) base::throw_errno(errno, "open", path);
  if (::fdatasync(file.get()) != 0) base::throw_errno(errno, "sync", path);
}

void trim_sample_log(const std::filesystem::path& path, int64_t iteration) {
  const base::FileWork work{"shorten", path};
  const base::FileDescriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!file.valid() && errno == ENOENT) return;
  if (!file.valid()) base::throw_errno(errno, "open", path);
  const uint64_t kept = bytes_to_keep(file.get(), path, iteration);
  const auto size = static_cast<uint64_t>(::lseek(file.get(), 0, SEEK_END));
  if (kept == size) return;
  const bool cut =
      ::ftruncate(file.get(), static_cast<off_t>(kept)) == 0 && ::fsync(file.get()) == 0;
  if (!cut) base::throw_errno(errno, "shorten", path);
}

}  // namespace trireme::report
