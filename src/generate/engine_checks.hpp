// Checks of an engine's options before it starts, and of requests.
#pragma once

#include <cstdint>
#include <span>

#include "trireme/config/model_shape.hpp"
#include "trireme/generate/engine.hpp"

namespace trireme::generate {

// All throw UserError: configuration, or bad_data for token ids and prompts of `shape`'s model.
void check_options(const EngineOptions& options);
void check_tokens(uint64_t request, std::span<const int32_t> tokens,
                  const config::ModelShape& shape);
void check_request(const Request& request, const config::ModelShape& shape);

}  // namespace trireme::generate
