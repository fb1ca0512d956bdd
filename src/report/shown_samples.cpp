#include "trireme/report/shown_samples.hpp"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

namespace trireme::report {
namespace {

using Json = nlohmann::ordered_json;

std::string text_of(const Json& json, const char* name) {
  const auto found = json.find(name);
  if (found == json.end() || found->is_null()) return "";
  return found->is_string() ? found->get<std::string>() : found->dump();
}

std::optional<ShownSample> sample_from(std::string_view line) {
  const Json json = Json::parse(line, nullptr, false);
  if (!json.is_object() || !json.contains("iteration") || !json.contains("response"))
    return std::nullopt;
  if (!json["iteration"].is_number_integer()) return std::nullopt;
  ShownSample sample{.iteration = json["iteration"].get<int64_t>(),
                     .prompt = text_of(json, "prompt"),
                     .response = text_of(json, "response"),
                     .label = text_of(json, "label"),
                     .finish = text_of(json, "finish_reason")};
  const auto reward = json.find("reward");
  sample.reward = reward != json.end() && reward->is_number() ? reward->get<double>() : NAN;
  if (const auto ids = json.find("output_ids"); ids != json.end() && ids->is_array())
    sample.tokens = static_cast<int64_t>(ids->size());
  for (const char* group : {"parts", "metrics"}) {
    const auto values = json.find(group);
    if (values == json.end() || !values->is_object()) continue;
    for (const auto& [name, value] : values->items())
      if (value.is_number()) sample.parts.emplace_back(name, value.get<double>());
  }
  return sample;
}

// Pieces of white space and of everything else.
std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> words;
  const auto space = [](char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; };
  for (size_t begin = 0; begin < text.size();) {
    size_t end = begin + 1;
    while (end < text.size() && space(text[end]) == space(text[begin])) ++end;
    words.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  return words;
}

void append(std::vector<DiffPiece>& pieces, DiffPiece::In in, std::string_view word) {
  if (pieces.empty() || pieces.back().in != in) pieces.push_back({in, ""});
  pieces.back().text += word;
}

}  // namespace

void ShownSamples::add(std::string_view line) {
  std::optional<ShownSample> sample = sample_from(line);
  if (!sample) return;
  const auto known = prompts_.find(sample->prompt);
  if (known == prompts_.end()) {
    if (prompts_.size() < most_prompts)
      prompts_.emplace(sample->prompt, std::pair(*sample, *sample));
  } else if (sample->iteration > known->second.second.iteration) {
    known->second.second = *sample;
  }
  // The newest iteration is kept in any case; thin_out() drops it when another one follows.
  if (!iterations_.contains(sample->iteration)) thin_out();
  SamplePicks& picks = iterations_[sample->iteration];
  ++picks.seen;
  if (picks.seen == 1) {
    picks.best = picks.worst = picks.any = std::move(*sample);
    return;
  }
  if (sample->reward > picks.best.reward) picks.best = *sample;
  if (sample->reward < picks.worst.reward) picks.worst = *sample;
  // Each of the iteration's samples is as likely, and the same in every reading of the file.
  const auto draw = static_cast<uint64_t>(picks.seen) * 0x9E3779B97F4A7C15u;
  if ((draw >> 32) % static_cast<uint64_t>(picks.seen) == 0) picks.any = *sample;
}

void ShownSamples::thin_out() {
  if (!iterations_.empty()) {
    const auto newest = std::prev(iterations_.end());
    const bool first = newest == iterations_.begin();
    if (!first && (newest->first - iterations_.begin()->first) % stride_ != 0)
      iterations_.erase(newest);
  }
  if (iterations_.size() < most_iterations) return;
  stride_ *= 2;
  const int64_t first = iterations_.begin()->first;
  std::erase_if(iterations_,
                [&](const auto& entry) { return (entry.first - first) % stride_ != 0; });
}

std::vector<std::pair<ShownSample, ShownSample>> ShownSamples::changed_answers(size_t most) const {
  std::vector<std::pair<ShownSample, ShownSample>> all;
  for (const auto& [prompt, answers] : prompts_)
    if (answers.second.iteration > answers.first.iteration) all.push_back(answers);
  const auto change = [](const auto& answers) {
    const double by = std::abs(answers.second.reward - answers.first.reward);
    return std::isnan(by) ? 0 : by;
  };
  std::ranges::stable_sort(all, std::greater{}, change);
  if (all.size() > most) all.resize(most);
  return all;
}

std::vector<DiffPiece> word_difference(std::string_view first, std::string_view second,
                                       size_t most) {
  using In = DiffPiece::In;
  const auto a = words_of(first);
  const auto b = words_of(second);
  std::vector<DiffPiece> pieces;
  if (a.size() > most || b.size() > most) {
    append(pieces, In::first, first);
    append(pieces, In::second, second);
    return pieces;
  }
  // common[i][j]: length of the longest common subsequence of a from i and b from j.
  std::vector<std::vector<uint16_t>> common(a.size() + 1, std::vector<uint16_t>(b.size() + 1, 0));
  for (size_t i = a.size(); i-- > 0;) {
    for (size_t j = b.size(); j-- > 0;)
      common[i][j] = a[i] == b[j] ? static_cast<uint16_t>(common[i + 1][j + 1] + 1)
                                  : std::max(common[i + 1][j], common[i][j + 1]);
  }
  size_t i = 0, j = 0;
  while (i < a.size() && j < b.size()) {
    if (a[i] == b[j]) {
      append(pieces, In::both, a[i++]);
      ++j;
    } else if (common[i + 1][j] >= common[i][j + 1]) {
      append(pieces, In::first, a[i++]);
    } else {
      append(pieces, In::second, b[j++]);
    }
  }
  while (i < a.size()) append(pieces, In::first, a[i++]);
  while (j < b.size()) append(pieces, In::second, b[j++]);
  return pieces;
}

}  // namespace trireme::report
