// Weights in 8 bits with scales beside them, as transformers' FineGrainedFP8Config stores them
// (Qwen3-FP8, Ministral 3): a tensor of F8_E4M3 called NAME, and NAME_scale_inv with one scale for
// all of it, for each row, or for each block of weight_block_size. A weight is element times scale,
// taken in fp32: exact where the scale has at most 20 significant bits (bf16 has 8).
#pragma once

#include <memory>
#include <optional>

#include "trireme/config/fp8_weights.hpp"
#include "trireme/model/weight_source.hpp"

namespace trireme::model {

// `weights` itself where no tensor has 8 bits and `config` is empty; else a source in which such
// tensors have their values and the tensors of scales are not listed. UserError(bad_data): scales
// that config.json does not describe, or the other way round.
std::shared_ptr<const WeightSource> with_scales(std::shared_ptr<const WeightSource> weights,
                                                const std::optional<config::Fp8Weights>& config);

}  // namespace trireme::model
