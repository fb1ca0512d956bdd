#include "trireme/base/samples.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "trireme/base/error.hpp"

namespace trireme {

std::string_view to_string(FinishReason reason) {
  switch (reason) {
    case FinishReason::stop: return "stop";
    case FinishReason::length: return "length";
    case FinishReason::stop_string: return "stop_string";
  }
  return "unknown";
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

// A per-sequence or per-token column of `from` is taken over if it is filled there.
template <class T>
void append_column(std::vector<T>& to, const std::vector<T>& from, int64_t begin, int64_t count) {
  if (from.empty()) return;
  const auto first = from.begin() + begin;
  to.insert(to.end(), first, first + count);
}

}  // namespace

void Samples::append(const Samples& other, int64_t i) {
  const int64_t begin_token = other.begin(i);
  const int64_t count = other.length(i);
  append_column(id, other.id, i, 1);
  append_column(prompt_row, other.prompt_row, i, 1);
  append_column(prompt_len, other.prompt_len, i, 1);
  append_column(finish_reason, other.finish_reason, i, 1);
  append_column(reward, other.reward, i, 1);
  if (reward_parts.size() < other.reward_parts.size()) reward_parts.resize(other.reward_parts.size());
  for (size_t part = 0; part < other.reward_parts.size(); ++part) {
    append_column(reward_parts[part], other.reward_parts[part], i, 1);
  }
  append_column(ids, other.ids, begin_token, count);
  append_column(action_mask, other.action_mask, begin_token, count);
  append_column(log_probs, other.log_probs, begin_token, count);
  append_column(version, other.version, begin_token, count);
  append_column(ref_log_probs, other.ref_log_probs, begin_token, count);
  cu_seqlens.push_back(cu_seqlens.back() + count);
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
  if (cu_seqlens.empty() || cu_seqlens.front() != 0 || !std::is_sorted(cu_seqlens.begin(), cu_seqlens.end())) {
    throw InternalError("samples: cu_seqlens must start with 0 and never decrease");
  }
  const auto sequences = static_cast<size_t>(size());
  const auto count = static_cast<size_t>(tokens());
  const auto fits = [](size_t have, size_t want, bool optional, const char* column) {
    if (have != want && !(optional && have == 0)) {
      throw InternalError(base::text("samples: column ", column, " has ", have, " entries, expected ", want));
    }
  };
  fits(id.size(), sequences, false, "id");
  fits(prompt_row.size(), sequences, false, "prompt_row");
  fits(prompt_len.size(), sequences, false, "prompt_len");
  fits(finish_reason.size(), sequences, false, "finish_reason");
  fits(reward.size(), sequences, true, "reward");
  for (const auto& part : reward_parts) fits(part.size(), sequences, true, "reward_parts");
  fits(ids.size(), count, false, "ids");
  fits(action_mask.size(), count, false, "action_mask");
  fits(log_probs.size(), count, false, "log_probs");
  fits(version.size(), count, false, "version");
  fits(ref_log_probs.size(), count, true, "ref_log_probs");
  for (int64_t i = 0; i < size(); ++i) {
    const int32_t prompt = prompt_len[static_cast<size_t>(i)];
    if (prompt < 0 || response_len(i) < 0) {
      throw InternalError(base::text("samples: prompt_len ", prompt, " of sequence ", i, " does not fit its ", length(i), " tokens"));
    }
  }
}

namespace {

constexpr uint64_t kMagic = 0x31304c504d415354ull;  // "TSAMPL01"

class Writer {
 public:
  void number(uint64_t value) { bytes_.append(reinterpret_cast<const char*>(&value), sizeof value); }
  template <class T>
  void column(const std::vector<T>& values) {
    number(values.size());
    bytes_.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}
  uint64_t number() {
    uint64_t value = 0;
    take(&value, sizeof value);
    return value;
  }
  template <class T>
  void column(std::vector<T>& values) {
    const uint64_t count = number();
    VALIDATE(count <= rest_.size() / sizeof(T), ExitCode::bad_data, "samples: a column is longer than its message");
    values.resize(count);
    take(values.data(), count * sizeof(T));
  }
  bool done() const { return rest_.empty(); }

 private:
  void take(void* into, size_t count) {
    VALIDATE(count <= rest_.size(), ExitCode::bad_data, "samples: the message ends early");
    if (count) std::memcpy(into, rest_.data(), count);
    rest_.remove_prefix(count);
  }
  std::string_view rest_;
};

// One list of columns for both directions.
template <class Stream, class S>
void columns(Stream& stream, S& s) {
  stream.column(s.id);
  stream.column(s.prompt_row);
  stream.column(s.prompt_len);
  stream.column(s.finish_reason);
  stream.column(s.cu_seqlens);
  stream.column(s.ids);
  stream.column(s.action_mask);
  stream.column(s.log_probs);
  stream.column(s.version);
  stream.column(s.reward);
  stream.column(s.ref_log_probs);
}

}  // namespace

std::string Samples::to_bytes() const {
  Writer writer;
  writer.number(kMagic);
  columns(writer, *this);
  writer.number(reward_parts.size());
  for (const auto& part : reward_parts) writer.column(part);
  return writer.take();
}

Samples Samples::from_bytes(std::string_view bytes) {
  Reader reader(bytes);
  VALIDATE(reader.number() == kMagic, ExitCode::bad_data, "samples: wrong magic number");
  Samples out;
  columns(reader, out);
  const uint64_t parts = reader.number();
  VALIDATE(parts <= 1024, ExitCode::bad_data, "samples: ", parts, " reward parts");
  out.reward_parts.resize(parts);
  for (auto& part : out.reward_parts) reader.column(part);
  VALIDATE(reader.done(), ExitCode::bad_data, "samples: malformed message");
  for (const FinishReason reason : out.finish_reason) {
    VALIDATE(reason <= FinishReason::stop_string, ExitCode::bad_data, "samples: finish reason ", static_cast<int>(reason),
             " is unknown: the ranks run different versions of the program");
  }
  try {
    out.check();
  } catch (const InternalError& error) {
    throw UserError(ExitCode::bad_data, error.what());
  }
  return out;
}

}  // namespace trireme
