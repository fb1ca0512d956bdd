// A folder that `wandb sync` takes: records of wandb_internal.proto in the framing of LevelDB's log
// (wandb/sdk/internal/datastore.py: CRC-32 of zip, blocks of 32 KiB).
#include <algorithm>
#include <array>
#include <cstdio>
#include <ctime>
#include <system_error>

#include "report/grown_file.hpp"
#include "report/sinks.hpp"
#include "report/wire_formats.hpp"
#include "trireme/base/hash.hpp"
#include "trireme/base/text.hpp"
#include "trireme/data/jsonl.hpp"

namespace trireme::report {
namespace {

// Fields of Record, HistoryRecord, SummaryRecord, ConfigRecord and their items, RunRecord,
// Timestamp.
constexpr int record_num = 1, record_history = 2, record_summary = 3, record_run = 17,
              record_exit = 18, record_header = 21;
constexpr int history_item = 1, history_step = 2, step_num = 1;
constexpr int summary_update = 1, config_update = 1;
constexpr int item_key = 1, item_json = 16;
constexpr int run_id = 1, run_project = 3, run_config = 4, run_display_name = 8, run_start = 17;
constexpr int timestamp_seconds = 1, timestamp_nanos = 2;
constexpr int header_version = 1, version_producer = 1, version_min_consumer = 2;
constexpr int exit_code_field = 1, exit_runtime = 2;

constexpr uint64_t block = 32768, head_bytes = 7;

ProtoMessage item_of(const std::string& key, const std::string& json) {
  ProtoMessage item;
  item.add_bytes(item_key, key).add_bytes(item_json, json);
  return item;
}

std::string json_of(double value) {
  std::array<char, 40> text{};
  std::snprintf(text.data(), text.size(), "%.17g", value);
  return text.data();
}

// Eight of 36 characters, the same in every start of the run.
std::string id_of(const SinkFacts& facts) {
  uint64_t hash = base::fnv1a(base::text(base::fixed(facts.started, 3)), base::fnv1a(facts.name));
  std::string id;
  for (int i = 0; i < 8; ++i, hash /= 36) id += "abcdefghijklmnopqrstuvwxyz0123456789"[hash % 36];
  return id;
}

std::filesystem::path file_of(const SinkFacts& facts, const std::string& id) {
  const auto time = static_cast<std::time_t>(facts.started);
  std::tm utc{};
  ::gmtime_r(&time, &utc);
  std::array<char, 32> stamp{};
  std::strftime(stamp.data(), stamp.size(), "%Y%m%d_%H%M%S", &utc);
  return facts.run / "wandb" / base::text("offline-run-", stamp.data(), "-", id) /
         base::text("run-", id, ".wandb");
}

class WandbSink final : public MetricsSink {
 public:
  explicit WandbSink(const SinkFacts& facts)
      : facts_(facts), id_(id_of(facts)), file_(file_of(facts, id_)) {
    std::error_code ignored;  // of a `wandb sync` between two starts: it is to send the rest, too
    std::filesystem::remove(file_.path().string() + ".synced", ignored);
    // ":W&B", then two bytes that stand for it once more, and the version of the format.
    file_.append(std::string(":W&B\xE1\xBE\0", 7));
    ProtoMessage version, header;
    version.add_bytes(version_producer, "0.20.0").add_bytes(version_min_consumer, "0.15.0");
    header.add_message(header_version, version);
    write(record_header, header);
    write(record_run, run_message());
  }

  void add(const MetricLine& line) override {
    ProtoMessage history, step;
    ProtoMessage summary;
    const auto add = [&](const std::string& key, const std::string& json) {
      history.add_message(history_item, item_of(key, json));
      summary.add_message(summary_update, item_of(key, json));
    };
    for (const auto& [name, value] : line.values) add(path_name(name), json_of(value));
    newest_ = line.time;
    add("_step", std::to_string(line.iteration));
    add("_timestamp", json_of(line.time));
    add("_runtime", json_of(runtime()));
    step.add_integer(step_num, line.iteration);
    history.add_message(history_step, step);
    write(record_history, history);
    write(record_summary, summary);
  }

  void end(int64_t exit_code) override {
    ProtoMessage message;
    message.add_integer(exit_code_field, exit_code);
    message.add_integer(exit_runtime, static_cast<int64_t>(runtime()));
    write(record_exit, message);
  }

 private:
  double runtime() const { return std::max(0.0, newest_ - facts_.started); }

  ProtoMessage run_message() const {
    ProtoMessage config;
    for (const auto& [key, value] : facts_.deck) {
      data::JsonObject text;
      text.add("v", value);
      const std::string json = text.str();  // {"v": "text"}
      config.add_message(
          config_update,
          item_of(key, json.substr(json.find(": ") + 2, json.size() - json.find(": ") - 3)));
    }
    ProtoMessage time, run;
    time.add_integer(timestamp_seconds, static_cast<int64_t>(facts_.started));
    time.add_integer(timestamp_nanos, 0);
    run.add_bytes(run_id, id_).add_bytes(run_project, "trireme").add_message(run_config, config);
    run.add_bytes(run_display_name, facts_.name).add_message(run_start, time);
    return run;
  }

  void write(int field, const ProtoMessage& content) {
    ProtoMessage record;
    record.add_integer(record_num, ++number_).add_message(field, content);
    file_.append(framed(record.bytes()));
  }

  // In pieces that end with their block: whole 1, first 2, middle 3, last 4.
  std::string framed(std::string_view bytes) const {
    std::string out;
    bool first = true;
    do {
      uint64_t room = block - (file_.size() + out.size()) % block;
      if (room < head_bytes) {
        out += std::string(room, '\0');
        room = block;
      }
      const std::string_view piece = bytes.substr(0, room - head_bytes);
      bytes.remove_prefix(piece.size());
      const int kind = first ? (bytes.empty() ? 1 : 2) : (bytes.empty() ? 4 : 3);
      const std::string typed = static_cast<char>(kind) + std::string(piece);
      out += little_endian(crc32(Crc::ieee, typed), 4) + little_endian(piece.size(), 2) + typed;
      first = false;
    } while (!bytes.empty());
    return out;
  }

  SinkFacts facts_;
  std::string id_;
  GrownFile file_;
  int64_t number_ = 0;
  double newest_ = 0;
};

}  // namespace

std::unique_ptr<MetricsSink> make_wandb_sink(const SinkFacts& facts) {
  return std::make_unique<WandbSink>(facts);
}

}  // namespace trireme::report
