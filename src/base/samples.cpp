#include "trireme/base/samples.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>

#include "trireme/base/error.hpp"
#include "trireme/base/wire.hpp"

namespace trireme {

std::string_view to_string(FinishReason reason) {
  switch (reason) {
    case FinishReason::stop: return "stop";
    case FinishReason::length: return "length";
    case FinishReason::stop_string: return "stop_string";
    case FinishReason::unfinished: return "unfinished";
    case FinishReason::broken: return "broken";
  }
  return "unknown";
}

float reward_of(const std::vector<Turn>& turns) {
  double sum = 0;
  for (const Turn& turn : turns) sum += double{turn.reward};
  return static_cast<float>(sum);
}

uint64_t request_id(int64_t iteration, int64_t prompt, int64_t sample, int64_t attempt) {
  const auto part = [](int64_t value, int bits, const char* name) {
    VALIDATE(value >= 0 && value < (int64_t{1} << bits), ExitCode::configuration, name, " ", value,
             " does not fit a request id (the limit is ", int64_t{1} << bits, ")");
    return static_cast<uint64_t>(value);
  };
  return part(iteration, 24, "iteration") << 40 | part(prompt, 20, "prompts of one batch") << 20 |
         part(sample, 12, "samples of one prompt") << 8 | part(attempt, 8, "attempts");
}

namespace {

enum class Per : uint8_t { sequence, token, sequence_and_end };

template <class T>
struct Column {
  const char* name;
  std::vector<T> Samples::*values;
  Per per;
  bool later = false;  // filled by a later role, or not in every run: may be empty
};

// All columns but reward_parts, turns and those with names, in the order of the wire form.
constexpr std::tuple columns{
    Column<uint64_t>{"id", &Samples::id, Per::sequence},
    Column<int64_t>{"prompt_row", &Samples::prompt_row, Per::sequence},
    Column<int32_t>{"prompt_len", &Samples::prompt_len, Per::sequence},
    Column<FinishReason>{"finish_reason", &Samples::finish_reason, Per::sequence},
    Column<int64_t>{"cu_seqlens", &Samples::cu_seqlens, Per::sequence_and_end},
    Column<int32_t>{"ids", &Samples::ids, Per::token},
    Column<uint8_t>{"action_mask", &Samples::action_mask, Per::token},
    Column<float>{"log_probs", &Samples::log_probs, Per::token},
    Column<int32_t>{"version", &Samples::version, Per::token},
    Column<float>{"sample_log_probs", &Samples::sample_log_probs, Per::token, true},
    Column<float>{"reward", &Samples::reward, Per::sequence, true},
    Column<float>{"ref_log_probs", &Samples::ref_log_probs, Per::token, true},
    Column<float>{"old_log_probs", &Samples::old_log_probs, Per::token, true},
    Column<float>{"values", &Samples::values, Per::token, true},
    Column<float>{"advantages", &Samples::advantages, Per::token, true},
    Column<float>{"returns", &Samples::returns, Per::token, true},
};

template <class Visit>
void for_each_column(Visit visit) {
  std::apply([&](const auto&... column) { (visit(column), ...); }, columns);
}

// A column of `from` is taken over if it is filled there.
template <class T>
void append_column(std::vector<T>& to, const std::vector<T>& from, int64_t begin, int64_t count) {
  if (from.empty()) return;
  const auto first = from.begin() + begin;
  to.insert(to.end(), first, first + count);
}

constexpr float no_metric = std::numeric_limits<float>::quiet_NaN();

// Columns with names.
template <class T>
using Named = std::map<std::string, std::vector<T>>;

// Appends entry `i` of `from` to columns of `before` sequences: `none` where one side lacks a name.
template <class T>
void append_named(Named<T>& to, const Named<T>& from, size_t before, size_t i, const T& none) {
  for (const auto& entry : from) to[entry.first].resize(before, none);
  for (auto& [name, column] : to) {
    const auto theirs = from.find(name);
    column.push_back(theirs == from.end() ? none : theirs->second[i]);
  }
}

}  // namespace

void Samples::add(const SequenceRecord& sequence, int64_t max_len) {
  const size_t count = sequence.ids.size();
  const auto full = static_cast<int64_t>(count);
  VALIDATE(sequence.log_probs.empty() || sequence.log_probs.size() == count, ExitCode::internal,
           "samples: one log-prob per token or none");
  VALIDATE(sequence.sample_log_probs.empty() || sequence.sample_log_probs.size() == count,
           ExitCode::internal, "samples: one log-prob of the draw per token or none");
  VALIDATE(sequence.versions.empty() || sequence.versions.size() == count, ExitCode::internal,
           "samples: one version per token or none");
  const int64_t kept = std::min(full, max_len);
  const auto& ranges = sequence.action_ranges;
  id.push_back(sequence.id);
  prompt_row.push_back(sequence.prompt_row);
  prompt_len.push_back(
      static_cast<int32_t>(ranges.empty() ? kept : std::min(ranges.front().first, kept)));
  finish_reason.push_back(kept < full ? FinishReason::length : sequence.finish_reason);
  ids.insert(ids.end(), sequence.ids.begin(), sequence.ids.begin() + kept);
  const auto first = static_cast<size_t>(tokens());
  const size_t end = first + static_cast<size_t>(kept);
  action_mask.resize(end, 0);
  log_probs.resize(end, 0);
  version.resize(end, -1);
  if (!sequence.sample_log_probs.empty()) sample_log_probs.resize(end, 0);
  for (const auto& [from, to] : ranges) {
    VALIDATE(from >= 0 && from <= to && to <= full, ExitCode::internal, "samples: action range ",
             from, "..", to);
    for (int64_t t = from; t < std::min(to, kept); ++t) {
      const auto token = static_cast<size_t>(t);
      action_mask[first + token] = 1;
      if (!sequence.log_probs.empty()) log_probs[first + token] = sequence.log_probs[token];
      if (!sequence.sample_log_probs.empty())
        sample_log_probs[first + token] = sequence.sample_log_probs[token];
      if (!sequence.versions.empty()) version[first + token] = sequence.versions[token];
    }
  }
  if (sequence.turns || !turns.empty()) {
    turns.resize(static_cast<size_t>(size()));
    turns.push_back(sequence.turns.value_or(std::vector<Turn>{}));
  }
  for (auto& entry : episode_metrics) entry.second.push_back(no_metric);
  cu_seqlens.push_back(static_cast<int64_t>(end));
}

void Samples::append(const Samples& other, int64_t i) {
  const int64_t first = other.begin(i);
  const int64_t count = other.length(i);
  // Without top-p and top-k, as in a run before its deck changed, a token was drawn with its
  // log-prob.
  const bool drawn = !sample_log_probs.empty() || !other.sample_log_probs.empty();
  if (drawn && sample_log_probs.empty()) sample_log_probs = log_probs;
  if (drawn && other.sample_log_probs.empty())
    append_column(sample_log_probs, other.log_probs, first, count);
  for_each_column([&](const auto& column) {
    if (column.per == Per::sequence_and_end) return;
    const bool tokens = column.per == Per::token;
    append_column(this->*column.values, other.*column.values, tokens ? first : i,
                  tokens ? count : 1);
  });
  if (reward_parts.size() < other.reward_parts.size())
    reward_parts.resize(other.reward_parts.size());
  for (size_t part = 0; part < other.reward_parts.size(); ++part)
    append_column(reward_parts[part], other.reward_parts[part], i, 1);
  const auto before = static_cast<size_t>(size());
  const auto theirs = static_cast<size_t>(i);
  append_named(reward_metrics, other.reward_metrics, before, theirs, no_metric);
  append_named(episode_metrics, other.episode_metrics, before, theirs, no_metric);
  append_named(judgements, other.judgements, before, theirs, std::string());
  if (!turns.empty() || !other.turns.empty()) {
    turns.resize(before);
    turns.push_back(other.turns.empty() ? std::vector<Turn>{} : other.turns[theirs]);
  }
  cu_seqlens.push_back(cu_seqlens.back() + count);
}

void Samples::append(const Samples& other) {
  for (int64_t i = 0; i < other.size(); ++i) append(other, i);
}

Samples Samples::unscored() const {
  Samples out = *this;
  out.reward.clear();
  out.reward_parts.clear();
  out.reward_metrics.clear();
  out.judgements.clear();
  out.ref_log_probs.clear();
  return out;
}

Samples Samples::select(std::span<const int64_t> rows) const {
  Samples out;
  for (const int64_t row : rows) out.append(*this, row);
  return out;
}

Samples Samples::sorted() const {
  std::vector<int64_t> order(static_cast<size_t>(size()));
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(), [this](int64_t a, int64_t b) {
    return id[static_cast<size_t>(a)] < id[static_cast<size_t>(b)];
  });
  return select(order);
}

void Samples::check() const {
  if (cu_seqlens.empty() || cu_seqlens.front() != 0 ||
      !std::is_sorted(cu_seqlens.begin(), cu_seqlens.end())) {
    throw InternalError("samples: cu_seqlens must start with 0 and never decrease");
  }
  const auto fits = [this](size_t have, Per per, bool later, const char* column) {
    const auto want = static_cast<size_t>(per == Per::token      ? tokens()
                                          : per == Per::sequence ? size()
                                                                 : size() + 1);
    if (have == want || (later && have == 0)) return;
    throw InternalError(
        base::text("samples: column ", column, " has ", have, " entries, expected ", want));
  };
  for_each_column([&](const auto& column) {
    fits((this->*column.values).size(), column.per, column.later, column.name);
  });
  for (const auto& part : reward_parts) fits(part.size(), Per::sequence, true, "reward_parts");
  for (const auto& entry : reward_metrics)
    fits(entry.second.size(), Per::sequence, false, "reward_metrics");
  for (const auto& entry : episode_metrics)
    fits(entry.second.size(), Per::sequence, false, "episode_metrics");
  for (const auto& entry : judgements)
    fits(entry.second.size(), Per::sequence, false, "judgements");
  fits(turns.size(), Per::sequence, true, "turns");
  for (const auto& of_one : turns) {
    if (!std::ranges::is_sorted(of_one, {}, &Turn::end))
      throw InternalError("samples: the turns of a sequence must be in their order");
  }
  for (int64_t i = 0; i < size(); ++i) {
    const int32_t prompt = prompt_len[static_cast<size_t>(i)];
    if (prompt < 0 || response_len(i) < 0) {
      throw InternalError(base::text("samples: prompt_len ", prompt, " of sequence ", i,
                                     " does not fit its ", length(i), " tokens"));
    }
  }
}

namespace {

// The latest form that a value needs, so that older programs read what they know.
constexpr uint64_t with_judgements = 0x35304c504d415354ull;      // "TSAMPL05"
constexpr uint64_t with_turns = 0x34304c504d415354ull;           // "TSAMPL04"
constexpr uint64_t with_reward_metrics = 0x33304c504d415354ull;  // "TSAMPL03"
constexpr uint64_t plain = 0x32304c504d415354ull;                // "TSAMPL02"

template <class T>
void put_named(base::WireWriter& writer, const Named<T>& named) {
  writer.put(std::vector<std::pair<std::string, std::vector<T>>>(named.begin(), named.end()));
}

template <class T>
Named<T> take_named(base::WireReader& reader) {
  Named<T> out;
  for (auto& [name, values] : reader.take<std::vector<std::pair<std::string, std::vector<T>>>>()) {
    VALIDATE(out.empty() || out.rbegin()->first < name, ExitCode::bad_data,
             "samples: the names of columns are not in order");
    out.emplace_hint(out.end(), name, std::move(values));
  }
  return out;
}

}  // namespace

// In the oldest form that has all of it: digests of data sets in checkpoints are digests of this.
std::string Samples::to_bytes() const {
  const uint64_t form = !judgements.empty()                          ? with_judgements
                        : !turns.empty() || !episode_metrics.empty() ? with_turns
                        : !reward_metrics.empty()                    ? with_reward_metrics
                                                                     : plain;
  base::WireWriter writer;
  writer.put(form);
  for_each_column([&](const auto& column) { writer.put(this->*column.values); });
  writer.put(reward_parts);
  if (form != plain) put_named(writer, reward_metrics);
  if (form >= with_turns) {
    writer.put(turns);
    put_named(writer, episode_metrics);
  }
  if (form == with_judgements) put_named(writer, judgements);
  return writer.take();
}

Samples Samples::from_bytes(std::string_view bytes) {
  base::WireReader reader(bytes, "samples");
  const auto form = reader.take<uint64_t>();
  VALIDATE(
      form == with_judgements || form == with_turns || form == with_reward_metrics || form == plain,
      ExitCode::bad_data, "samples: wrong magic number");
  Samples out;
  for_each_column([&](const auto& column) { reader.take(out.*column.values); });
  reader.take(out.reward_parts);
  if (form != plain) out.reward_metrics = take_named<float>(reader);
  VALIDATE(form != with_reward_metrics || !out.reward_metrics.empty(), ExitCode::bad_data,
           "samples: no reward_metrics");
  if (form >= with_turns) {  // the digit is the highest byte that differs
    reader.take(out.turns);
    out.episode_metrics = take_named<float>(reader);
  }
  if (form == with_judgements) {
    out.judgements = take_named<std::string>(reader);
    VALIDATE(!out.judgements.empty(), ExitCode::bad_data, "samples: no judgements");
  }
  reader.must_be_done();
  for (const FinishReason reason : out.finish_reason) {
    VALIDATE(reason <= FinishReason::broken, ExitCode::bad_data, "samples: finish reason ",
             static_cast<int>(reason),
             " is unknown: the ranks run different versions of the program");
  }
  try {
    out.check();
  } catch (const InternalError& error) { throw UserError(ExitCode::bad_data, error.what()); }
  return out;
}

Samples without(std::span<const uint64_t> groups, const Samples& samples) {
  if (groups.empty()) return samples;
  Samples rest;
  for (int64_t i = 0; i < samples.size(); ++i) {
    if (!std::ranges::binary_search(groups, group_of(samples.id[static_cast<size_t>(i)])))
      rest.append(samples, i);
  }
  return rest;
}

}  // namespace trireme
