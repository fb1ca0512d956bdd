// Published models of each architecture, for docs/user/models.md: the unit tests read what their
// config.json files say.
#pragma once

#include <array>
#include <string_view>

#include "trireme/config/architectures.hpp"

namespace trireme::config {

// By architecture.
inline constexpr std::array<std::string_view, architecture_table.size()> known_checkpoints{
    "Llama 2, Llama 3.2, TinyLlama, SmolLM2, Yi, deepseek-coder",  // llama
    "Mistral 7B v0.1, Mistral 7B v0.3, Mistral Nemo",              // mistral
    "Qwen2.5",                                                     // qwen2
    "Qwen3 (dense)",                                               // qwen3
    "SmolLM3",                                                     // smollm3
    "Granite 3 (dense)",                                           // granite
    "OLMo 2",                                                      // olmo2
    "OLMo 3",                                                      // olmo3
    "Ministral 3",                                                 // ministral3
    "Gemma 2",                                                     // gemma2
    "Gemma 3",                                                     // gemma3
    "GLM-4-9B",                                                    // glm
    "GLM-4-0414",                                                  // glm4
    "Phi-3 mini, Phi-4, Phi-4-mini",                               // phi3
    "Command R7B",                                                 // cohere2
    "Apertus",                                                     // apertus
};

constexpr std::string_view checkpoints_of(Architecture architecture) {
  return known_checkpoints[static_cast<size_t>(architecture)];
}

}  // namespace trireme::config
