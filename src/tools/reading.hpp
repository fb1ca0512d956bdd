// Tokenizers of the tools, with what their command lines say to chat templates.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "tools/output.hpp"
#include "trireme/text/tokenizer.hpp"
#include "trireme/tools/commands.hpp"

namespace trireme::tools {

// Throws UserError(usage) for options that cannot be used. The date is today unless the options
// name one. Local.
text::Tokenizer load_tokenizer(const std::filesystem::path& model, const ReadingOptions& reading);

// Throws UserError(bad_data) for a token id for which a model of so many vocabulary rows has none.
// It may have more of them than its tokenizer has tokens, and write them.
void require_rows(std::span<const int32_t> ids, int64_t rows, const std::string& where);

// The date of chat templates: the one that the options name, else that of an earlier run of the
// same output (setting_of_earlier_run), else today.
std::string date_for(const std::filesystem::path& output, const ReadingOptions& reading,
                     Existing existing);
// Their values, for the record of an output.
void add_reading(ToolJob& job, const ReadingOptions& reading);

}  // namespace trireme::tools
