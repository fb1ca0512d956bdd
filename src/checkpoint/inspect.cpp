#include <algorithm>
#include <map>

#include "index.hpp"
#include "manifest.hpp"
#include "trireme/base/error.hpp"
#include "trireme/checkpoint/reader.hpp"
#include "trireme/checkpoint/writer.hpp"

namespace trireme::checkpoint {
namespace {

std::string extents(const std::vector<int64_t>& shape) {
  std::string out;
  for (const int64_t dim : shape) out += (out.empty() ? "" : " x ") + std::to_string(dim);
  return out.empty() ? "scalar" : out;
}

// "/actor/weight/model.norm.weight" -> "/actor/weight"
std::string group_of(const std::string& path) {
  return path.substr(0, std::max<size_t>(path.rfind('/'), 1));
}

std::string inspect_one(const std::filesystem::path& path, bool verify) {
  Reader reader(comm::CommView{}, path);
  const Manifest& m = reader.manifest();
  std::string out =
      base::text("checkpoint ", path.string(), "\n  step ", m.step, ", saved ", m.saved, " by ",
                 m.world_size, " ranks, fence ", m.fence, ", format ", m.format, ", version ",
                 m.version.empty() ? "unknown" : m.version,
                 m.config_digest.empty() ? "" : ", deck " + m.config_digest, "\n  ",
                 base::human_bytes(static_cast<double>(m.data_bytes)), " in ",
                 reader.datasets().size(), " datasets\n");
  std::map<std::string, std::pair<int64_t, int64_t>> groups;
  for (const DatasetInfo& info : reader.datasets()) {
    auto& [count, bytes] = groups[group_of(info.path)];
    ++count;
    bytes += info.bytes;
  }
  for (const auto& [name, sum] : groups) {
    out += base::text("  ", name, ": ", sum.first, " datasets, ",
                      base::human_bytes(static_cast<double>(sum.second)), "\n");
  }
  for (const DatasetInfo& info : reader.datasets()) {
    out += base::text("    ", info.path, "  ", extents(info.shape), "  ",
                      to_string(stored_type(info.type)), "\n");
  }
  out += "  state " + reader.state() + "\n";
  if (verify) {
    reader.verify();
    out += base::text("  all ", reader.counters().pieces, " digests fit\n");
  }
  return out;
}

}  // namespace

std::string inspect(const std::filesystem::path& path, bool verify) {
  if (std::filesystem::exists(path / manifest_name) || list_steps(path).empty())
    return inspect_one(path, verify);
  std::string out;
  for (const int64_t step : list_steps(path)) {
    try {
      out += inspect_one(path / folder_name(step), verify);
    } catch (const UserError& error) {
      if (error.code() != ExitCode::bad_data) throw;
      out += base::text("checkpoint ", (path / folder_name(step)).string(),
                        "\n  DAMAGED: ", error.what(), "\n");
    }
  }
  return out;
}

}  // namespace trireme::checkpoint
