#include "trireme/report/run_end.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "trireme/base/files.hpp"
#include "trireme/base/log.hpp"
#include "trireme/base/text.hpp"
#include "trireme/data/jsonl.hpp"
#include "trireme/report/metrics_file.hpp"
#include "trireme/report/side_output.hpp"
#include "trireme/trace/guards.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::report {
namespace {

// Totals over ranks, as a JSON object.
std::string counts_of_all(const comm::CommView& world) {
  std::vector<std::pair<std::string, int64_t>> mine;
  for (const auto& entry : trace::counts()) mine.emplace_back(entry.first, entry.second);
  std::map<std::string, int64_t> all;
  for (const auto& [name, count] : world.all_gather<std::pair<std::string, int64_t>>(mine))
    all[name] += count;
  data::JsonObject out;
  for (const auto& [name, count] : all) out.add(name, count);
  return out.str();
}

// Seconds that guards took, all ranks together, and in words what that is of the run.
struct GuardCost {
  std::string json;
  std::string words;
};
GuardCost guards_of_all(const comm::CommView& world, double run_seconds) {
  data::JsonObject json;
  std::vector<std::string> parts;
  double all = 0;
  for (const auto& [name, mine] : trace::guard_seconds()) {
    const double seconds = world.sum(mine);
    all += seconds;
    json.add(name, seconds);
    if (seconds > 0) parts.push_back(base::text(name, " ", base::human_seconds(seconds)));
  }
  const double share = all / (run_seconds * world.size());
  json.add("share", share);
  return {json.str(), base::text("guards: ", base::fixed(100 * share, 2), " % of the ranks' time (",
                                 base::join(parts, ", "), ")")};
}

std::string role_summary(const trace::RoleTable& role) {
  return base::text(
      "{\"role\":\"", role.role, "\",\"ranks\":", role.ranks, ",\"seconds\":", role.seconds.avg,
      ",\"communication\":", role.communication.avg, ",\"wait\":", role.wait.avg,
      ",\"io\":", role.io.avg, ",\"iterations\":{\"count\":", role.iterations.count,
      ",\"seconds\":", role.iterations.seconds, ",\"wait\":", role.iterations.wait, "}",
      ",\"host_peak\":", role.host_peak, ",\"device_peak\":", role.device_peak, "}");
}

// One small plot each, of those that there is room for.
void plot_reward_metrics(const std::filesystem::path& metrics) {
  constexpr size_t most = 4;
  constexpr int width = 60, height = 5;
  if (!std::filesystem::exists(metrics)) return;
  const auto curves = reward_metric_curves(metrics);
  for (size_t i = 0; i < std::min(most, curves.size()); ++i) {
    const auto& [name, curve] = curves[i];
    const std::string plot = text_plot(curve, "mean " + name + " by iteration", width, height);
    if (!plot.empty()) log::info("\n" + plot);
  }
  if (curves.size() > most)
    log::info(base::text("not plotted: ", curves.size() - most, " more reward metrics (all are in ",
                         metrics.string(), ")"));
}

}  // namespace

void write_end(const comm::CommView& world, const std::string& roles,
               const std::filesystem::path& folder, const RunEnd& end) {
  const auto table = trace::gather_table(
      world.rank(), roles, [&](const std::string& mine) { return world.gather(mine, 0); });
  const std::string counts = counts_of_all(world);
  const GuardCost guards = guards_of_all(world, end.seconds);
  if (world.rank() != 0) return;
  std::vector<std::string> summaries;
  for (const auto& role : table) summaries.push_back(role_summary(role));
  const std::string engines = end.generation.to_json();
  side_output("summary.json", [&] {
    base::write_file_atomically(
        folder / "summary.json",
        base::text("{\"seconds\":", end.seconds, ",\"roles\":[", base::join(summaries),
                   "],\"counts\":", counts, engines.empty() ? "" : ",\"generation\":", engines,
                   ",\"guards\":", guards.json, ",\"last\":", to_json(end.last), "}\n"));
  });
  log::info("\n" + trace::to_text(table));
  for (const std::string& line :
       {end.generation.describe(), trace::overlap_text(table, end.roles_run)}) {
    if (!line.empty()) log::info(line);
  }
  for (const auto& note : trace::notes(table, end.roles_run)) log::info(note);
  log::info(guards.words);
  const std::string plot = text_plot(end.curve, end.title);
  if (!plot.empty()) log::info("\n" + plot);
  side_output("plots of reward metrics", [&] { plot_reward_metrics(folder / "metrics.jsonl"); });
}

}  // namespace trireme::report
