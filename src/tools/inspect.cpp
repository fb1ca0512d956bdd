#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/run_view.hpp"
#include "trireme/base/files.hpp"
#include "trireme/checkpoint/reader.hpp"
#include "trireme/checkpoint/writer.hpp"
#include "trireme/model/gguf.hpp"
#include "trireme/model/model_files.hpp"
#include "trireme/tools/commands.hpp"

namespace trireme::tools {
namespace {

void say(const std::string& text) { std::fputs(text.c_str(), stdout); }

void print_weights(const model::WeightSource& weights) {
  int64_t elements = 0;
  for (const auto& name : weights.names()) {
    const auto& spec = weights.spec(name);
    elements += spec.elements();
    say(base::text("  ", name, "  ", base::shape_text(spec.shape), "  ", weights.type_name(name),
                   "\n"));
  }
  say(base::text(weights.names().size(), " tensors, ", elements, " elements\n"));
}

void inspect_model(const std::filesystem::path& path) {
  const auto folder = model::open_model(path);
  const auto spec = model::describe(
      folder.shape, folder.shape.score_head ? model::HeadKind::score : model::HeadKind::language);
  say(base::text(path.string(), ": ", config::describe(folder.shape, spec.elements()), "\n"));
  print_weights(*folder.weights);
}

// Slices by name: how many, and their seconds together.
struct TraceTotals {
  std::map<std::string, std::pair<int64_t, double>> by_name;
  size_t events = 0;
  double end = 0;
};

TraceTotals total_up(const nlohmann::json& trace) {
  const auto& events = trace.is_array() ? trace : trace.at("traceEvents");
  TraceTotals totals;
  totals.events = events.size();
  for (const auto& event : events) {
    if (event.value("ph", "") != "X") continue;
    const double seconds = event.value("dur", 0.0) * 1e-6;
    auto& entry = totals.by_name[event.value("name", "")];
    ++entry.first;
    entry.second += seconds;
    totals.end = std::max(totals.end, event.value("ts", 0.0) * 1e-6 + seconds);
  }
  return totals;
}

void inspect_trace(const std::filesystem::path& path) {
  const auto json = nlohmann::json::parse(base::read_file(path), nullptr, false);
  VALIDATE(!json.is_discarded(), ExitCode::bad_data, path.string(), " is not JSON");
  TraceTotals totals;
  try {
    totals = total_up(json);
  } catch (const nlohmann::json::exception& error) {
    throw UserError(ExitCode::bad_data,
                    base::text(path.string(), " is JSON but no trace (", error.what(),
                               "): expected an object with traceEvents"));
  }
  say(base::text(path.string(), ": ", totals.events, " events, ", base::human_seconds(totals.end),
                 "\n"));
  for (const auto& [name, entry] : totals.by_name) {
    say(base::text("  ", name, "  ", entry.first, " x, ", base::human_seconds(entry.second),
                   " in all\n"));
  }
}

// Every checkpoint of the folder, or the one that it is; damaged ones are listed like the others,
// and counted at the end.
void inspect_checkpoints(const std::filesystem::path& path, bool verify) {
  const auto steps = checkpoint::list_steps(path);
  if (steps.empty()) return say(checkpoint::inspect(path, verify));
  std::vector<std::string> damaged;
  for (const int64_t step : steps) {
    const auto folder = path / checkpoint::folder_name(step);
    try {
      say(checkpoint::inspect(folder, verify));
    } catch (const UserError& error) {
      if (error.code() != ExitCode::bad_data) throw;
      damaged.emplace_back(error.what());
      say(base::text("checkpoint ", folder.string(), "\n  DAMAGED\n"));
    }
  }
  VALIDATE(damaged.empty(), ExitCode::bad_data, damaged.size(), " of ", steps.size(),
           " checkpoints are damaged:\n", base::join(damaged, "\n"));
}

bool is_checkpoint(const std::filesystem::path& path) {
  return std::filesystem::exists(path / "manifest.json") || !checkpoint::list_steps(path).empty();
}

}  // namespace

ExitCode run_inspect(const InspectCommand& command) {
  const auto& path = command.path;
  VALIDATE(std::filesystem::exists(path), ExitCode::input_missing, path.string(),
           " does not exist: check the path");
  if (std::filesystem::is_directory(path)) {
    if (is_run(path) && !command.verify) {
      print_status(path);
    } else if (is_checkpoint(path)) {
      inspect_checkpoints(path, command.verify);
    } else if (is_checkpoint(path / "ckpt")) {
      inspect_checkpoints(path / "ckpt", command.verify);
    } else {
      VALIDATE(!is_run(path), ExitCode::input_missing, path.string(),
               " has no checkpoint yet: without --verify inspect shows how the run stands");
      inspect_model(path);
    }
  } else if (path.extension() == ".gguf") {
    inspect_model(path);
  } else if (path.extension() == ".safetensors") {
    print_weights(model::SafetensorsSource(path));
  } else if (is_run(path.parent_path()) && path.filename() == "metrics.jsonl") {
    print_status(path.parent_path());
  } else if (path.extension() == ".json") {
    inspect_trace(path);
  } else {
    throw UserError(
        ExitCode::usage,
        base::text(path.string(),
                   ": inspect takes a run folder, a checkpoint, a model folder, a .safetensors "
                   "or .gguf file, or a trace.json"));
  }
  return ExitCode::done;
}

}  // namespace trireme::tools
