// The types of a tokenizer.json's parts that are read, for messages and docs/user/models.md.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/base/text.hpp"

namespace trireme::text {

inline constexpr std::string_view known_word_models[] = {"BPE", "Unigram"};
inline constexpr std::string_view known_normalizers[] = {
    "NFC",     "NFD",     "NFKC",  "NFKD",        "Lowercase", "StripAccents",
    "Prepend", "Replace", "Strip", "Precompiled", "Sequence"};
inline constexpr std::string_view known_pre_tokenizers[] = {
    "ByteLevel", "CharDelimiterSplit", "Digits",     "Metaspace",       "Punctuation",
    "Split",     "UnicodeScripts",     "Whitespace", "WhitespaceSplit", "Sequence"};
inline constexpr std::string_view known_split_behaviors[] = {
    "Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
inline constexpr std::string_view known_prepend_schemes[] = {"always", "first", "never"};
inline constexpr std::string_view known_decoders[] = {
    "ByteLevel", "BPEDecoder", "Replace", "Metaspace", "ByteFallback", "Fuse", "Strip", "Sequence"};
inline constexpr std::string_view known_post_processors[] = {
    "ByteLevel", "TemplateProcessing", "RobertaProcessing", "BertProcessing", "Sequence"};

// "A, B, C"
inline std::string list_of(std::span<const std::string_view> names) {
  return base::join(std::vector<std::string>(names.begin(), names.end()));
}

}  // namespace trireme::text
