#include "trireme/report/run_record.hpp"

#include <array>
#include <chrono>
#include <ctime>
#include <nlohmann/json.hpp>

#include "trireme/base/files.hpp"
#include "trireme/base/progress.hpp"
#include "trireme/base/text.hpp"
#include "trireme/data/jsonl.hpp"

namespace trireme::report {
namespace {

constexpr const char* record_name = "status.json";

std::string to_json(const RunStart& start) {
  data::JsonObject json;
  json.add("time", start.time).add("after", start.after).add("ranks", start.ranks);
  json.add("nodes", start.nodes).add("version", start.version).add("folder", start.folder);
  if (start.ended > 0)
    json.add("ended", start.ended).add("exit_code", start.exit_code).add("how", start.how);
  return json.str();
}

RunStart start_from(const nlohmann::json& json) {
  return {.time = json.value("time", 0.0),
          .after = json.value("after", int64_t{0}),
          .ranks = json.value("ranks", int64_t{0}),
          .nodes = json.value("nodes", int64_t{0}),
          .version = json.value("version", ""),
          .folder = json.value("folder", ""),
          .ended = json.value("ended", 0.0),
          .exit_code = json.value("exit_code", int64_t{0}),
          .how = json.value("how", "")};
}

}  // namespace

RunRecord read_run_record(const std::filesystem::path& run) try {
  const base::FileWork work{"read", run / record_name};
  const auto json = nlohmann::json::parse(base::read_if_there(run / record_name), nullptr, false);
  RunRecord record;
  if (!json.is_object()) return record;
  record.command = json.value("command", "");
  record.name = json.value("name", "");
  record.model = json.value("model", "");
  record.iterations = json.value("iterations", int64_t{0});
  for (const auto& start : json.value("starts", nlohmann::json::array()))
    record.starts.push_back(start_from(start));
  return record;
} catch (const nlohmann::json::exception&) { return {}; }

void write_run_record(const std::filesystem::path& run, const RunRecord& record) {
  std::vector<std::string> starts;
  for (const RunStart& start : record.starts) starts.push_back("  " + to_json(start));
  data::JsonObject json;
  json.add("command", record.command).add("name", record.name).add("model", record.model);
  json.add("iterations", record.iterations);
  json.add_json("starts", base::text("[\n", base::join(starts, ",\n"), "\n]"));
  base::write_file_atomically(run / record_name, json.str() + "\n");
}

double wall_clock() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string clock_text(double seconds_since_1970) {
  const auto time = static_cast<std::time_t>(seconds_since_1970);
  std::tm local{};
  ::localtime_r(&time, &local);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S", &local);
  return text.data();
}

}  // namespace trireme::report
