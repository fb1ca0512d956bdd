// Tokenizers of the tools, with what their command lines say to chat templates.
#pragma once

#include <filesystem>

#include "trireme/text/tokenizer.hpp"
#include "trireme/tools/commands.hpp"

namespace trireme::tools {

// Throws UserError(usage) for options that cannot be used. The date is today unless the options
// name one. Local.
text::Tokenizer load_tokenizer(const std::filesystem::path& model, const ReadingOptions& reading);

}  // namespace trireme::tools
