// docs/user/models.md: families of models, weights and tokenizers that can be read.
#pragma once

#include <string>

namespace trireme::tools {

// Markdown, from the tables by which config.json, weights and tokenizer.json are read.
std::string models_page();

}  // namespace trireme::tools
