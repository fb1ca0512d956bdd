#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "config/model_shape_parts.hpp"

namespace trireme::config {
namespace {

constexpr const char* sees_all = "full_attention";
constexpr const char* sees_window = "sliding_attention";

// no_rope_layers has a 0 for each layer that is not rotated; without it, it is every
// no_rope_layer_interval-th.
void read_layers_without_rope(const JsonReader& json, ModelShape& shape) {
  if (!traits(shape.architecture).layers_without_rope) return;
  const auto layers = static_cast<size_t>(shape.layers);
  shape.without_rope.assign(layers, false);
  if (!json.has("no_rope_layers")) {
    const int64_t interval = json.size("no_rope_layer_interval", 1 << 14, 4);
    for (size_t i = 0; i < layers; ++i)
      shape.without_rope[i] = static_cast<int64_t>(i + 1) % interval == 0;
    return;
  }
  const Json& list = json.at("no_rope_layers");
  VALIDATE(list.is_array() && list.size() == layers, ExitCode::bad_data, json.file(),
           ": no_rope_layers must be a list with a number for each of the ", layers, " layers");
  for (size_t i = 0; i < layers; ++i) {
    const int64_t rotated = json.checked_integer("no_rope_layers", list[i]);
    VALIDATE(rotated == 0 || rotated == 1, ExitCode::bad_data, json.file(), ": no_rope_layers has ",
             rotated, " (1: the layer is rotated, 0: it is not)");
    shape.without_rope[i] = rotated == 0;
  }
}

// Null: no window.
int64_t window_size(const JsonReader& json, int64_t otherwise) {
  if (!json.contains("sliding_window")) return otherwise;
  return json.has("sliding_window") ? json.size("sliding_window", INT32_MAX) : 0;
}

// Which layers have a window, where layer_types does not say.
std::vector<bool> usual_windows(const JsonReader& json, const ModelShape& shape) {
  const ArchitectureTraits& known = traits(shape.architecture);
  const int64_t pattern = known.window_pattern_key
                              ? json.size("sliding_window_pattern", 1 << 14, known.window_pattern)
                              : known.window_pattern;
  const int64_t first = json.integer("max_window_layers", 28);
  std::vector<bool> out;
  for (int64_t i = 0; i < shape.layers; ++i) {
    out.push_back(known.window == WindowKey::types                       ? (i + 1) % pattern != 0
                  : known.window == WindowKey::size || shape.window == 0 ? shape.window > 0
                  : known.layers_without_rope ? shape.without_rope[static_cast<size_t>(i)]
                                              : i >= first);
  }
  return out;
}

std::vector<bool> listed_windows(const JsonReader& json, const ModelShape& shape) {
  const Json& list = json.at("layer_types");
  VALIDATE(list.is_array() && std::cmp_equal(list.size(), shape.layers), ExitCode::bad_data,
           json.file(), ": layer_types must be a list with a text for each of the ", shape.layers,
           " layers");
  std::vector<bool> out;
  for (const Json& type : list) {
    VALIDATE(type == sees_all || type == sees_window, ExitCode::bad_data, json.file(),
             ": layer_types has ", type.dump(), " (supported: ", sees_all, ", ", sees_window, ")");
    out.push_back(type == sees_window);
  }
  return out;
}

void read_windows(const JsonReader& json, ModelShape& shape) {
  const ArchitectureTraits& known = traits(shape.architecture);
  const bool used = json.flag("use_sliding_window", false);
  VALIDATE(!used || known.window == WindowKey::flag, ExitCode::bad_data, json.file(),
           ": use_sliding_window is not supported for this architecture (its attention sees the "
           "whole context): set it to false");
  shape.window = known.window == WindowKey::none || (known.window == WindowKey::flag && !used)
                     ? 0
                     : window_size(json, known.window_size);
  std::vector<bool> windowed = usual_windows(json, shape);
  if (json.has("layer_types")) {
    const std::vector<bool> listed = listed_windows(json, shape);
    const bool free = known.window == WindowKey::types || known.window == WindowKey::flag;
    VALIDATE(free || listed == windowed, ExitCode::bad_data, json.file(),
             ": layer_types has other layers with sliding_attention than this architecture "
             "(transformers ignores it, and ",
             shape.window > 0 ? "sliding_window gives every layer a window" : "there is no window",
             "): remove it");
    windowed = listed;
  }
  const bool any = std::find(windowed.begin(), windowed.end(), true) != windowed.end();
  VALIDATE(
      !any || shape.window > 0, ExitCode::bad_data, json.file(),
      ": layer_types has sliding_attention, but there is no window (sliding_window is null, or "
      "use_sliding_window is false): give its size");
  if (!any) shape.window = 0;
  if (any) shape.windowed = std::move(windowed);
}

}  // namespace

void read_layers(const JsonReader& json, ModelShape& shape) {
  read_layers_without_rope(json, shape);
  read_windows(json, shape);
  if (!traits(shape.architecture).rope_in_windows_only) return;
  for (int64_t i = 0; i < shape.layers; ++i) shape.without_rope.push_back(!shape.has_window(i));
}

void write_layers(const ModelShape& shape, nlohmann::ordered_json& json) {
  const ArchitectureTraits& known = traits(shape.architecture);
  if (known.layers_without_rope) {
    auto& layers = json["no_rope_layers"] = nlohmann::ordered_json::array();
    for (const bool without : shape.without_rope) layers.push_back(without ? 0 : 1);
  }
  if (known.window == WindowKey::none) return;
  json["sliding_window"] = nullptr;
  if (shape.window > 0) json["sliding_window"] = shape.window;
  if (known.window == WindowKey::flag) json["use_sliding_window"] = shape.window > 0;
  if (known.window == WindowKey::size) return;
  auto& types = json["layer_types"] = nlohmann::ordered_json::array();
  for (int64_t i = 0; i < shape.layers; ++i)
    types.push_back(shape.has_window(i) ? sees_window : sees_all);
}

}  // namespace trireme::config
