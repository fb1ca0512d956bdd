#include "trireme/report/generation_totals.hpp"

#include "trireme/base/text.hpp"
#include "trireme/data/jsonl.hpp"

namespace trireme::report {

void GenerationTotals::add(const IterationMetrics& metrics) {
  const auto& generation = metrics.generation;
  if (generation.empty()) return;
  const double more = generation.at("tokens");
  tokens += more;
  const auto guessed = generation.find("accepted_tokens");
  const double own = guessed == generation.end() ? more : more - guessed->second;
  stepped += own;
  slot_steps += own / generation.at("occupancy");
  seconds += more / generation.at("tokens_per_second");
  preemptions += generation.at("preemptions");
  shared_tokens += generation.at("shared_tokens");
  if (const auto dropped = generation.find("dropped_tokens"); dropped != generation.end())
    dropped_tokens += dropped->second;
}

std::string GenerationTotals::describe() const {
  if (tokens == 0) return "";
  return base::text(
      "generation: ", base::fixed(tokens, 0), " tokens, ", base::fixed(tokens / seconds, 0),
      " a second while the engines worked, occupancy ", base::fixed(100 * stepped / slot_steps, 0),
      " % (tokens per slot and step), ", base::fixed(preemptions, 0), " preemptions, ",
      base::fixed(shared_tokens, 0), " prompt tokens shared",
      dropped_tokens > 0 ? base::text(", ", base::fixed(dropped_tokens, 0),
                                      " tokens of answers that were begun again")
                         : std::string());
}

std::string GenerationTotals::to_json() const {
  if (tokens == 0) return "";
  data::JsonObject json;
  json.add("tokens", tokens)
      .add("tokens_per_second", tokens / seconds)
      .add("occupancy", stepped / slot_steps)
      .add("preemptions", preemptions)
      .add("shared_tokens", shared_tokens);
  if (dropped_tokens > 0) json.add("dropped_tokens", dropped_tokens);
  return json.str();
}

}  // namespace trireme::report
