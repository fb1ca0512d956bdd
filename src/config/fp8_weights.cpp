#include "config/fp8_reader.hpp"

#include <string>

namespace trireme::config {
namespace {

constexpr const char* quantization_key = "quantization_config";
constexpr int64_t usual_block = 128;  // of transformers' FineGrainedFP8Config

int64_t block_size(const Json& value, const std::string& file) {
  const bool good = value.is_number_integer() && value > 0 && value <= (1 << 20);
  VALIDATE(good, ExitCode::bad_data, file, ": ", quantization_key, ".weight_block_size has ",
           value.dump(), " (must be two positive integers: rows and columns)");
  return value.get<int64_t>();
}

}  // namespace

std::optional<Fp8Weights> read_fp8_weights(const JsonReader& json) {
  if (!json.has(quantization_key)) return std::nullopt;
  const Json& object = json.at(quantization_key);
  VALIDATE(object.is_object(), ExitCode::bad_data, json.file(), ": ", quantization_key,
           " must be an object, not ", object.type_name());
  const JsonReader quantised(object, base::text(json.file(), ": ", quantization_key));
  const std::string method = quantised.string("quant_method", "");
  VALIDATE(method == "fp8", ExitCode::bad_data, json.file(), ": the weights are quantised (",
           quantization_key, ".quant_method is \"", method,
           "\"), which is supported for \"fp8\" only: use the model's float weights");
  const std::string format = quantised.string("fmt", "e4m3");
  VALIDATE(format == "e4m3", ExitCode::bad_data, json.file(), ": ", quantization_key, ".fmt is \"",
           format, "\" (only e4m3 is supported): use the model's float weights");
  if (!quantised.contains("weight_block_size")) return Fp8Weights{usual_block, usual_block};
  if (!quantised.has("weight_block_size")) return Fp8Weights{};
  const Json& block = quantised.at("weight_block_size");
  VALIDATE(block.is_array() && block.size() == 2, ExitCode::bad_data, json.file(), ": ",
           quantization_key, ".weight_block_size is ", block.dump(),
           " (must be [rows, columns] or null)");
  return Fp8Weights{block_size(block[0], json.file()), block_size(block[1], json.file())};
}

}  // namespace trireme::config
