// A file store of MLflow: mlflow.set_tracking_uri("file:RUN/mlruns"). Its layout is that of
// mlflow/store/tracking/file_store.py.
#include <unistd.h>

#include <array>
#include <cstdio>
#include <system_error>

#include "report/grown_file.hpp"
#include "report/sinks.hpp"
#include "trireme/base/hash.hpp"
#include "trireme/base/text.hpp"
#include "trireme/data/jsonl.hpp"

namespace trireme::report {
namespace {

constexpr const char* experiment_id = "100000000000000001";  // of this store alone
constexpr int running = 1, finished = 3, failed = 4;         // RunStatus

int64_t milliseconds(double seconds) { return static_cast<int64_t>(seconds * 1000); }

// A text as YAML reads it back: JSON's strings are YAML's.
std::string yaml(std::string_view text) {
  data::JsonObject object;
  object.add("", text);
  const std::string json = object.str();  // {"": "text"}
  return json.substr(json.find(": ") + 2, json.size() - json.find(": ") - 3);
}

// MLflow's names of metrics are paths: "judge" and "judge/format" cannot both be there.
std::string file_name(const std::string& metric) {
  std::string out;
  for (const char c : metric) {
    const bool allowed = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                         (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.' || c == ' ';
    out += allowed ? c : c == '/' ? '.' : '_';
  }
  return out;
}

class MlflowSink final : public MetricsSink {
 public:
  explicit MlflowSink(const SinkFacts& facts)
      : facts_(facts), store_(std::filesystem::absolute(facts.run) / "mlruns") {
    const uint64_t hash = base::fnv1a(facts.name);
    run_id_ = hex(hash) + hex(base::fnv1a(base::text(milliseconds(facts.started)), hash));
    const std::filesystem::path experiment = store_ / experiment_id;
    folder_ = experiment / run_id_;
    std::error_code error;
    std::filesystem::remove_all(folder_, error);
    for (const char* part : {"metrics", "params", "tags", "artifacts"})
      std::filesystem::create_directories(folder_ / part);
    write(experiment / "meta.yaml",
          base::text("artifact_location: ", yaml("file://" + experiment.string()),
                     "\ncreation_time: ", milliseconds(facts.started), "\nexperiment_id: '",
                     experiment_id, "'\nlast_update_time: ", milliseconds(facts.started),
                     "\nlifecycle_stage: active\nname: ", yaml("trireme " + facts.command), "\n"));
    write_run(running, 0);
    write(folder_ / "tags" / "mlflow.runName", facts.name);
    write(folder_ / "tags" / "mlflow.source.name", "trireme " + facts.command);
    for (const auto& [key, value] : facts.deck) write(folder_ / "params" / file_name(key), value);
  }

  void add(const MetricLine& line) override {
    newest_ = line.time;
    for (const auto& [name, value] : line.values) {
      std::array<char, 96> text{};
      std::snprintf(text.data(), text.size(), "%lld %.17g %lld\n",
                    static_cast<long long>(milliseconds(line.time)), value,
                    static_cast<long long>(line.iteration));
      // Opened for each line: a run has more metrics than a process may have files.
      append_to(folder_ / "metrics" / file_name(name), text.data());
    }
  }

  void end(int64_t exit_code) override { write_run(exit_code == 0 ? finished : failed, newest_); }

 private:
  static std::string hex(uint64_t value) {
    std::array<char, 20> text{};
    std::snprintf(text.data(), text.size(), "%016llx", static_cast<unsigned long long>(value));
    return text.data();
  }
  static void write(const std::filesystem::path& path, std::string_view content) {
    GrownFile(path).append(content);
  }

  void write_run(int status, double ended) const {
    write(folder_ / "meta.yaml",
          base::text("artifact_uri: ", yaml("file://" + (folder_ / "artifacts").string()),
                     "\nend_time: ", ended > 0 ? base::text(milliseconds(ended)) : "null",
                     "\nentry_point_name: ''\nexperiment_id: '", experiment_id,
                     "'\nlifecycle_stage: active\nrun_id: ", run_id_,
                     "\nrun_name: ", yaml(facts_.name), "\nrun_uuid: ", run_id_,
                     "\nsource_name: ''\nsource_type: 4\nsource_version: ''\nstart_time: ",
                     milliseconds(facts_.started), "\nstatus: ", status,
                     "\ntags: []\nuser_id: trireme\n"));
  }

  SinkFacts facts_;
  std::filesystem::path store_, folder_;
  std::string run_id_;
  double newest_ = 0;
};

}  // namespace

std::unique_ptr<MetricsSink> make_mlflow_sink(const SinkFacts& facts) {
  return std::make_unique<MlflowSink>(facts);
}

}  // namespace trireme::report
