// Digests of what a run reads, by deck key: a checkpoint keeps them, and a later start notices other files under the same names.
#pragma once

#include "driver/run.hpp"
#include "trireme/config/model_shape.hpp"
#include "trireme/driver/progress.hpp"
#include "trireme/text/tokenizer.hpp"

namespace trireme::driver {

// What every command reads beside its rows: the tokenizer, what config.json says of the model that is trained, weights and config.json of the
// reference and of reward models. Local, for rank 0.
Inputs common_inputs(const Run& run, const text::Tokenizer& tokenizer, const config::ModelShape& trained);

}  // namespace trireme::driver
