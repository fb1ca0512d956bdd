#include "manifest.hpp"

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "index.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"
#include "trireme/checkpoint/writer.hpp"

namespace trireme::checkpoint {
namespace {

using Json = nlohmann::ordered_json;
constexpr uint64_t largest_manifest = uint64_t{1} << 20;
constexpr size_t largest_depth = 8;

Json without_digest(const FullManifest& m) {
  Json json;
  json["format"] = m.format;
  json["program"] = "trireme";
  json["version"] = m.version;
  json["saved"] = m.saved;
  json["step"] = m.step;
  json["fence"] = m.fence;
  json["world_size"] = m.world_size;
  json["config_digest"] = m.config_digest;
  json["files"][data_name] = {{"bytes", m.data_bytes}, {"metadata_xxh3_128", m.metadata_digest}};
  json["files"][index_name] = {{"bytes", m.index_bytes}, {"xxh3_128", m.index_digest}};
  return json;
}

// A parser callback that refuses deep nesting: nlohmann's destructor recurses.
Json parse(std::string_view text, const std::string& name) {
  try {
    return Json::parse(text, [&](int depth, Json::parse_event_t, Json&) {
      VALIDATE(static_cast<size_t>(depth) < largest_depth, ExitCode::bad_data, name,
               " nests deeper than a manifest does");
      return true;
    });
  } catch (const nlohmann::json::exception& error) {
    throw UserError(ExitCode::bad_data,
                    base::text(name, " is not a manifest (", error.what(), ")"));
  }
}

// get<int64_t> would cast a double of any size, which is undefined behaviour; this throws for all
// that is no whole number.
int64_t whole(const Json& json) { return json.get_ref<const int64_t&>(); }

FullManifest fields_of(const Json& json, const std::string& name) {
  FullManifest m;
  try {
    m.format = whole(json.at("format"));
    VALIDATE(m.format == format_version, ExitCode::bad_data, name, " has format ", m.format,
             "; this program reads ", format_version);
    m.version = json.at("version").get<std::string>();
    m.saved = json.at("saved").get<std::string>();
    m.step = whole(json.at("step"));
    m.fence = whole(json.at("fence"));
    m.world_size = whole(json.at("world_size"));
    m.config_digest = json.at("config_digest").get<std::string>();
    const Json& files = json.at("files");
    m.data_bytes = whole(files.at(data_name).at("bytes"));
    m.metadata_digest = files.at(data_name).at("metadata_xxh3_128").get<std::string>();
    m.index_bytes = whole(files.at(index_name).at("bytes"));
    m.index_digest = files.at(index_name).at("xxh3_128").get<std::string>();
  } catch (const nlohmann::json::exception& error) {
    throw UserError(
        ExitCode::bad_data,
        base::text(name, " lacks a field or has one of another type (", error.what(), ")"));
  }
  return m;
}

// nullopt: there is no such file. Throws io_error or permission when that cannot be found out now.
std::optional<int64_t> size_of_file(const std::filesystem::path& path) {
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  if (!error) return static_cast<int64_t>(size);
  if (error != std::errc::no_such_file_or_directory && error != std::errc::not_a_directory)
    base::throw_errno(error.value(), "look at", path);
  return std::nullopt;
}

}  // namespace

std::string to_json(const FullManifest& manifest) {
  Json json = without_digest(manifest);
  json["sha256"] = sha256_hex(json.dump(2));
  return json.dump(2) + "\n";
}

FullManifest manifest_from_json(std::string_view text, const std::string& name) {
  const FullManifest manifest = fields_of(parse(text, name), name);
  // Written anew it must be the same text: then every byte of it, its own digest included, is as it
  // was saved.
  VALIDATE(to_json(manifest) == text, ExitCode::bad_data, name,
           " does not fit its SHA-256: it was changed after the save");
  return manifest;
}

FullManifest read_manifest(const std::filesystem::path& checkpoint) {
  const std::filesystem::path path = checkpoint / manifest_name;
  VALIDATE(size_of_file(path).has_value(), ExitCode::bad_data, checkpoint.string(), " has no ",
           manifest_name, ": not a whole checkpoint");
  FullManifest manifest =
      manifest_from_json(base::read_file(path, largest_manifest), path.string());
  for (const auto& [name, bytes] :
       {std::pair{data_name, manifest.data_bytes}, std::pair{index_name, manifest.index_bytes}}) {
    const auto found = size_of_file(checkpoint / name);
    VALIDATE(found.has_value(), ExitCode::bad_data, (checkpoint / name).string(), " is missing");
    VALIDATE(*found == bytes, ExitCode::bad_data, (checkpoint / name).string(), " has ", *found,
             " bytes, its manifest says ", bytes, ": truncated or replaced");
  }
  return manifest;
}

void require_step(const Manifest& manifest, const std::filesystem::path& checkpoint, int64_t step) {
  VALIDATE(manifest.step == step, ExitCode::bad_data, checkpoint.string(), " holds step ",
           manifest.step,
           " by its manifest: the folder was renamed (give it its own name again, or load it by "
           "ckpt.resume from another folder)");
}

std::string metadata_digest(const std::filesystem::path& data_file,
                            const std::vector<ByteRange>& ranges) {
  constexpr int64_t step = int64_t{4} << 20;
  const base::FileDescriptor fd = base::open_read(data_file);
  std::vector<std::byte> buffer;
  DigestStream stream;
  for (const ByteRange& range : ranges) {
    for (int64_t at = range.begin; at < range.end; at += step) {
      buffer.resize(static_cast<size_t>(std::min(step, range.end - at)));
      base::read_at(fd.get(), static_cast<uint64_t>(at), buffer, data_file);
      stream.add(buffer);
    }
  }
  return to_hex(stream.value());
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

int64_t step_of(const std::string& folder_name) {
  constexpr std::string_view prefix = "step-";
  if (!folder_name.starts_with(prefix) || folder_name.size() < prefix.size() + 6 ||
      folder_name.size() > prefix.size() + 18)
    return -1;
  int64_t step = 0;
  for (const char c : std::string_view(folder_name).substr(prefix.size())) {
    if (c < '0' || c > '9') return -1;
    step = step * 10 + (c - '0');
  }
  const bool padded = folder_name.size() > prefix.size() + 6 &&
                      folder_name[prefix.size()] == '0';  // another folder has that step
  return padded ? -1 : step;
}

}  // namespace trireme::checkpoint
