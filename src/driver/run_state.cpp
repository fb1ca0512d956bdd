#include "trireme/driver/run_state.hpp"

#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>

#include "trireme/base/error.hpp"
#include "trireme/checkpoint/reader.hpp"

namespace trireme::driver {

namespace {

nlohmann::json to_object(const data::SamplerState& sampler) {
  return {{"sizes", sampler.sizes}, {"taken", sampler.taken}};
}

// JSON has no NaN, and null in its place.
double number(const nlohmann::json& value) {
  return value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>();
}

nlohmann::json figure(const std::optional<double>& value) {
  return value ? nlohmann::json(*value) : nlohmann::json();
}

std::optional<double> figure_of(const nlohmann::json& value) {
  return value.is_null() ? std::nullopt : std::optional(value.get<double>());
}

void read(const nlohmann::json& object, data::SamplerState& sampler) {
  object.at("sizes").get_to(sampler.sizes);
  object.at("taken").get_to(sampler.taken);
}

nlohmann::json to_array(const std::vector<rollout::CarriedPrompt>& carried) {
  auto array = nlohmann::json::array();
  for (const rollout::CarriedPrompt& one : carried) array.push_back({one.group, one.row});
  return array;
}

void read(const nlohmann::json& array, std::vector<rollout::CarriedPrompt>& carried) {
  for (const auto& one : array)
    carried.push_back({one.at(0).get<uint64_t>(), one.at(1).get<int64_t>()});
}

}  // namespace

std::string to_json(const RunState& p) {
  return nlohmann::json{
      {"progress", {{"iteration", p.iteration}, {"phase", p.phase}, {"mini_batch", p.mini_batch}}},
      {"version", p.version},
      {"actor_steps", p.training.actor_steps},
      {"critic_steps", p.training.critic_steps},
      {"schedule_steps", p.schedule_steps},
      {"kl_coefficient", p.training.kl_coefficient},
      {"metrics_cursor", p.metrics_cursor},
      {"skipped_prompts", p.skipped_prompts},
      {"informative_share", p.filter.share_before},
      {"filter",
       {p.filter.drawn, p.filter.draws, p.filter.seen, p.filter.informative, p.filter.complaints}},
      {"pending_bytes", p.pending_bytes},
      {"unfinished_bytes", p.unfinished_bytes},
      {"dispatch_bytes", p.dispatch_bytes},
      {"carried", to_array(p.carried)},
      {"sampler", to_object(p.sampler)},
      {"ptx_sampler", to_object(p.ptx_sampler)},
      {"best",
       {{"metric", p.best.metric}, {"iteration", p.best.iteration}, {"value", p.best.value}}},
      {"outcome",
       {{"curve", figure(p.outcome.curve)},
        {"kl", figure(p.outcome.kl)},
        {"entropy", figure(p.outcome.entropy)}}},
      {"rewards", p.rewards},
      {"command", p.command},
      {"deck", p.deck},
      {"inputs", p.inputs},
      {"resumed_from", p.resumed_from},
      {"compute_type", p.compute_type},
      {"date", p.date}}
      .dump();
}

RunState run_state_from_json(const std::string& text) {
  try {
    const auto json = nlohmann::json::parse(text);
    RunState p;
    const auto& where = json.at("progress");
    where.at("iteration").get_to(p.iteration);
    where.at("phase").get_to(p.phase);
    where.at("mini_batch").get_to(p.mini_batch);
    json.at("version").get_to(p.version);
    json.at("actor_steps").get_to(p.training.actor_steps);
    json.at("critic_steps").get_to(p.training.critic_steps);
    json.at("schedule_steps").get_to(p.schedule_steps);
    p.training.kl_coefficient = number(json.at("kl_coefficient"));
    json.at("metrics_cursor").get_to(p.metrics_cursor);
    json.at("skipped_prompts").get_to(p.skipped_prompts);
    json.at("pending_bytes").get_to(p.pending_bytes);
    p.unfinished_bytes = json.value("unfinished_bytes", int64_t{0});
    p.dispatch_bytes = json.value("dispatch_bytes", int64_t{0});
    p.filter.share_before = json.value("informative_share", 1.0);
    using Counts = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t>;
    if (json.contains("filter"))
      std::tie(p.filter.drawn, p.filter.draws, p.filter.seen, p.filter.informative,
               p.filter.complaints) = json.at("filter").get<Counts>();
    if (json.contains("carried")) read(json.at("carried"), p.carried);  // not in older checkpoints
    read(json.at("sampler"), p.sampler);
    if (json.contains("ptx_sampler"))
      read(json.at("ptx_sampler"), p.ptx_sampler);  // the first checkpoints had neither
    if (json.contains("best")) {
      const auto& best = json.at("best");
      best.at("metric").get_to(p.best.metric);
      best.at("iteration").get_to(p.best.iteration);
      best.at("value").get_to(p.best.value);
    }
    if (json.contains("outcome")) {
      const auto& outcome = json.at("outcome");
      p.outcome = {.curve = figure_of(outcome.at("curve")),
                   .kl = figure_of(outcome.at("kl")),
                   .entropy = figure_of(outcome.at("entropy"))};
    }
    for (const auto& reward : json.at("rewards")) p.rewards.push_back(number(reward));
    json.at("command").get_to(p.command);
    json.at("deck").get_to(p.deck);
    p.inputs = json.value("inputs", learn::Inputs{});
    p.resumed_from = json.value("resumed_from", std::string{});
    if (json.contains("compute_type")) json.at("compute_type").get_to(p.compute_type);
    p.date = json.value("date", std::string{});
    return p;
  } catch (const nlohmann::json::exception& error) {
    // Its digest fits, so it is no damage.
    throw checkpoint::Mismatch(base::text("the state of the checkpoint is malformed (",
                                          error.what(),
                                          "): it was written by another version of Trireme"));
  }
}

}  // namespace trireme::driver
