#include "torch/torch.hpp"

#include "support/golden.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>

#include "trireme/model/safetensors.hpp"

namespace trireme::test {

using nlohmann::json;

struct GoldenCase::Hyper {
  json values;

  const json* find(std::string_view key) const {
    const auto pointer = json::json_pointer("/" + std::string(key));
    if (!values.contains(pointer)) return nullptr;
    const json& found = values.at(pointer);
    return found.is_null() ? nullptr : &found;
  }
};

namespace {

std::map<std::string, std::string, std::less<>> text_map(const json& object, const char* key) {
  std::map<std::string, std::string, std::less<>> out;
  if (!object.contains(key)) return out;
  for (const auto& [name, value] : object.at(key).items())
    out.emplace(name, value.get<std::string>());
  return out;
}

// Files stay open: many cases share one.
const model::SafetensorsFile& opened(const std::filesystem::path& path) {
  static std::map<std::string, std::unique_ptr<model::SafetensorsFile>> files;
  auto& file = files[path.string()];
  if (!file) file = std::make_unique<model::SafetensorsFile>(path);
  return *file;
}

at::Tensor load(const std::filesystem::path& path, const std::string& key) {
  const auto& file = opened(path);
  const auto found = file.entries().find(key);
  if (found == file.entries().end())
    throw std::runtime_error(path.string() + " has no tensor " + key);
  const auto& entry = found->second;
  const bool integer = entry.type == model::StoredType::i64;
  if (!integer && entry.type != model::StoredType::f32)
    throw std::runtime_error(key + " is neither F32 nor I64");
  at::Tensor out =
      at::empty(entry.spec.shape, at::TensorOptions().dtype(integer ? at::kLong : at::kFloat));
  const auto bytes = file.bytes(entry);
  if (!bytes.empty()) std::memcpy(out.data_ptr(), bytes.data(), bytes.size());
  return out;
}

const std::string& key_of(const std::map<std::string, std::string, std::less<>>& fields,
                          std::string_view field, const std::string& name) {
  const auto found = fields.find(field);
  if (found == fields.end())
    throw std::runtime_error("the golden case " + name + " has no field " + std::string(field));
  return found->second;
}

}  // namespace

at::Tensor GoldenCase::input(std::string_view field) const {
  return load(folder_ / file, key_of(inputs, field, name));
}
at::Tensor GoldenCase::output(std::string_view field) const {
  return load(folder_ / file, key_of(outputs, field, name));
}

std::optional<double> GoldenCase::number(std::string_view key) const {
  const json* found = hyper_->find(key);
  return found && found->is_number() ? std::optional(found->get<double>()) : std::nullopt;
}

std::optional<bool> GoldenCase::flag(std::string_view key) const {
  const json* found = hyper_->find(key);
  return found && found->is_boolean() ? std::optional(found->get<bool>()) : std::nullopt;
}

std::optional<std::string> GoldenCase::word(std::string_view key) const {
  const json* found = hyper_->find(key);
  return found && found->is_string() ? std::optional(found->get<std::string>()) : std::nullopt;
}

std::vector<double> GoldenCase::numbers(std::string_view key) const {
  const json* found = hyper_->find(key);
  return found ? found->get<std::vector<double>>() : std::vector<double>{};
}

std::vector<std::string> GoldenCase::words(std::string_view key) const {
  const json* found = hyper_->find(key);
  return found ? found->get<std::vector<std::string>>() : std::vector<std::string>{};
}

Comparison GoldenCase::compare(std::string_view field, const at::Tensor& got) const {
  const auto limit = tolerance.find(field);
  if (limit == tolerance.end())
    throw std::runtime_error(name + " states no tolerance for " + std::string(field));
  const auto mask = compare_mask.find(field);
  return test::compare(got, output(field), limit->second,
                       mask == compare_mask.end() ? at::Tensor() : input(mask->second));
}

testing::AssertionResult GoldenCase::matches(std::string_view field, const at::Tensor& got) const {
  const Comparison result = compare(field, got);
  if (result.problem.empty()) return testing::AssertionSuccess();
  return testing::AssertionFailure() << result.problem << " [" << name << ", " << field << "]";
}

namespace {

Comparison mismatch(const std::string& problem) { return {HUGE_VAL, HUGE_VAL, problem}; }

// How the elements that count differ.
struct Differences {
  int64_t compared = 0;
  int64_t beyond = 0;  // elements farther off than the bound
  int64_t worst = -1;  // the one that uses up most of its bound
  double share = 0;    // of that bound
  double largest = 0;  // absolute
};

Differences differences(const at::Tensor& got, const at::Tensor& want, const Tolerance& tolerance,
                        const at::Tensor& selected) {
  const double* a = got.const_data_ptr<double>();
  const double* b = want.const_data_ptr<double>();
  Differences out;
  for (int64_t i = 0; i < want.numel(); ++i) {
    if (selected.defined() && !selected.const_data_ptr<bool>()[i]) continue;
    ++out.compared;
    if ((std::isnan(a[i]) && std::isnan(b[i])) || a[i] == b[i]) continue;
    const double difference = std::isnan(a[i] - b[i]) ? HUGE_VAL : std::abs(a[i] - b[i]);
    const double bound = tolerance.atol + tolerance.rtol * std::abs(b[i]);
    const double share = bound > 0 ? difference / bound : HUGE_VAL;
    out.largest = std::max(out.largest, difference);
    if (difference > bound) ++out.beyond;
    if (share > out.share) out.share = share, out.worst = i;
  }
  return out;
}

}  // namespace

Comparison compare(const at::Tensor& got, const at::Tensor& want, const Tolerance& tolerance,
                   const at::Tensor& mask) {
  if (!got.defined()) return mismatch("the result is undefined");
  if (got.numel() != want.numel()) {
    return mismatch("the result has " + std::to_string(got.numel()) + " elements, the reference " +
                    std::to_string(want.numel()));
  }
  const at::Tensor g = got.detach().to(at::kCPU, at::kDouble).contiguous();
  const at::Tensor w = want.to(at::kDouble).contiguous();
  at::Tensor selected;
  if (mask.defined()) {
    at::Tensor wide = mask.to(at::kBool);
    while (wide.dim() < want.dim()) wide = wide.unsqueeze(-1);
    selected = wide.expand_as(want).contiguous();
  }
  const Differences found = differences(g, w, tolerance, selected);
  if (found.compared == 0 && w.numel() > 0) return mismatch("the mask selects no element");
  Comparison out{found.largest, found.share, ""};
  if (found.beyond == 0) return out;
  if (tolerance.outlier_fraction > 0) {  // the outlier rule has two limits of its own
    out.share = std::max(static_cast<double>(found.beyond) /
                             (tolerance.outlier_fraction * static_cast<double>(found.compared)),
                         found.largest / tolerance.outlier_atol);
    if (out.share <= 1) return out;
  }
  std::ostringstream text;
  text << found.beyond << " of " << found.compared << " elements beyond the tolerance, worst at "
       << found.worst << ": got " << g.const_data_ptr<double>()[found.worst] << ", want "
       << w.const_data_ptr<double>()[found.worst];
  out.problem = text.str();
  return out;
}

std::filesystem::path Golden::folder() {
  if (const char* other = std::getenv("TRIREME_PARITY_DIR"); other && *other) return other;
  const char* source = std::getenv("TRIREME_SOURCE_DIR");
  return std::filesystem::path(source ? source : ".") / "tests/gold/parity";
}

const Golden& Golden::instance() {
  static const Golden golden(folder());
  return golden;
}

Golden::Golden(std::filesystem::path folder) {
  const auto path = folder / "cases.json";
  std::ifstream stream(path);
  if (!stream)
    throw std::runtime_error("no golden cases at " + path.string() +
                             ": set TRIREME_SOURCE_DIR or TRIREME_PARITY_DIR");
  const json document = json::parse(stream);
  for (const json& row : document.at("cases")) {
    GoldenCase entry;
    entry.name = row.at("name");
    entry.formula = row.at("formula");
    entry.function = row.at("function");
    entry.file = row.at("file");
    entry.inputs = text_map(row, "inputs");
    entry.outputs = text_map(row, "outputs");
    entry.compare_mask = text_map(row, "compare_mask");
    for (const auto& [field, limits] : row.at("tolerance").items()) {
      entry.tolerance[field] = {limits.at("rtol"), limits.at("atol"),
                                limits.value("outlier_atol", 0.0),
                                limits.value("outlier_fraction", 0.0)};
    }
    entry.hyper_ = std::make_shared<const GoldenCase::Hyper>(GoldenCase::Hyper{row.at("hyper")});
    entry.folder_ = folder;
    cases_.push_back(std::move(entry));
  }
}

const GoldenCase& Golden::at(std::string_view name) const {
  for (const auto& entry : cases_) {
    if (entry.name == name) return entry;
  }
  throw std::runtime_error("no golden case " + std::string(name));
}

namespace {

template <class Condition>
std::vector<const GoldenCase*> select(const std::vector<GoldenCase>& cases, Condition&& condition) {
  std::vector<const GoldenCase*> out;
  for (const auto& entry : cases) {
    if (condition(entry)) out.push_back(&entry);
  }
  return out;
}

}  // namespace

std::vector<const GoldenCase*> Golden::starting_with(std::string_view prefix) const {
  return select(cases_, [&](const GoldenCase& c) { return c.name.starts_with(prefix); });
}

std::vector<const GoldenCase*> Golden::with_formula(std::string_view formula) const {
  return select(cases_, [&](const GoldenCase& c) {
    std::istringstream words(c.formula);
    for (std::string word; words >> word;) {
      if (word == formula) return true;
    }
    return false;
  });
}

std::vector<const GoldenCase*> Golden::in_file(std::string_view stem) const {
  return select(cases_,
                [&](const GoldenCase& c) { return std::filesystem::path(c.file).stem() == stem; });
}

}  // namespace trireme::test
