#include "text/decoder.hpp"

#include <nlohmann/json.hpp>

#include "text/byte_alphabet.hpp"
#include "text/normalizer.hpp"
#include "trireme/base/error.hpp"
#include "trireme/text/utf8.hpp"

namespace trireme::text {

namespace {

[[noreturn]] void refuse_decoder(const std::string& where, const std::string& problem) {
  throw UserError(ExitCode::bad_data, where + ": decoder " + problem);
}

std::string decoder_text(const Json& json, const char* key, const std::string& where) {
  const auto found = json.is_object() ? json.find(key) : json.end();
  if (found == json.end() || !found->is_string())
    refuse_decoder(where, base::text("has no text `", key, "`: the file is damaged"));
  return found->get<std::string>();
}

// The byte of "<0x0A>"; -1 for other tokens.
int fallback_byte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return -1;
  int value = 0;
  for (const char c : token.substr(3, 2)) {
    const bool digit = c >= '0' && c <= '9';
    const bool upper = c >= 'A' && c <= 'F', lower = c >= 'a' && c <= 'f';
    if (!digit && !upper && !lower) return -1;
    value = value * 16 + (digit ? c - '0' : upper ? c - 'A' + 10 : c - 'a' + 10);
  }
  return value;
}

}  // namespace

Decoder::Decoder(const Json& json, const std::string& where) {
  if (json.is_null())
    refuse_decoder(where,
                   "is null (known: ByteLevel, Replace, Metaspace, ByteFallback, Fuse, Strip, "
                   "Sequence)");
  read(json, where);
}

void Decoder::read(const Json& json, const std::string& where) {
  const std::string type = decoder_text(json, "type", where);
  const bool per_token = !byte_level_ && !byte_fallback_ && !fused_;
  if (type == "Sequence") {
    const auto parts = json.find("decoders");
    if (parts == json.end() || !parts->is_array())
      refuse_decoder(where, "Sequence has no list `decoders`: the file is damaged");
    for (const Json& part : *parts) read(part, where);
  } else if (type == "ByteLevel" && per_token && steps_.empty()) {
    byte_level_ = true;
  } else if (type == "Replace" && per_token) {
    steps_.push_back({read_pattern(json, "decoder Replace", where),
                      decoder_text(json, "content", where), false});
  } else if (type == "Metaspace" && per_token) {
    const bool legacy = json.contains("add_prefix_space") && json["add_prefix_space"] == false;
    const bool never = json.contains("prepend_scheme") ? json["prepend_scheme"] == "never" : legacy;
    steps_.push_back({std::nullopt, decoder_text(json, "replacement", where), !never});
  } else if (type == "ByteFallback" && per_token) {
    byte_fallback_ = true;
  } else if (type == "Fuse") {
    fused_ = true;
  } else if (type == "Strip" && fused_ && !byte_level_ && strip_count_ == 0) {
    read_strip(json, where);
  } else {
    refuse_decoder(where,
                   "type \"" + type +
                       "\" is not known here (known: ByteLevel; or Replace and Metaspace, then "
                       "ByteFallback, Fuse, Strip, in a Sequence)");
  }
}

void Decoder::read_strip(const Json& json, const std::string& where) {
  stripped_ = decoder_text(json, "content", where);
  const auto number = [&](const char* key) {
    const auto found = json.find(key);
    if (found == json.end() || !found->is_number_unsigned() || *found > 1'000'000)
      refuse_decoder(where, base::text("Strip has no number `", key, "`: the file is damaged"));
    return found->get<int64_t>();
  };
  strip_count_ = number("start");
  if (number("stop") != 0)
    refuse_decoder(where, "Strip with stop = " + json["stop"].dump() + " is not known (known: 0)");
  if (stripped_.empty()) refuse_decoder(where, "Strip has an empty `content`: the file is damaged");
}

void Decoder::emit(std::string_view text, DecodeState& state, std::string& out) const {
  while (state.stripped < strip_count_ && text.starts_with(stripped_)) {
    text.remove_prefix(stripped_.size());
    ++state.stripped;
  }
  if (text.empty()) return;
  state.stripped = strip_count_;
  out += text;
}

// Bytes in a row are a text where all of them are one, else each is U+FFFD.
void Decoder::end_run(DecodeState& state, std::string& out) const {
  if (state.held.empty()) return;
  std::string text;
  if (first_invalid_utf8(state.held) == std::string::npos) {
    text = state.held;
  } else {
    for (size_t i = 0; i < state.held.size(); ++i) append_utf8(text, 0xFFFD);
  }
  state.held.clear();
  emit(text, state, out);
}

void Decoder::push(std::string_view token, std::string_view bytes, DecodeState& state,
                   std::string& out) const {
  if (byte_level_) {
    state.held += bytes;
    size_t done = 0;
    while (done < state.held.size()) {
      const Utf8Step step = utf8_step(std::string_view(state.held).substr(done));
      if (step.kind == Utf8::incomplete) break;
      if (step.kind == Utf8::valid) {
        out.append(state.held, done, step.length);
      } else {
        append_utf8(out, 0xFFFD);
      }
      done += step.length;
    }
    state.held.erase(0, done);
    return;
  }
  std::string text(token);
  for (const Step& step : steps_) {
    if (step.pattern) {
      text = replace_matches(text, *step.pattern, step.text);
      continue;
    }
    const bool dropped = step.drops_first && !state.begun;
    for (size_t at = 0; (at = text.find(step.text, at)) != std::string::npos;) {
      text.replace(at, step.text.size(), dropped ? "" : " ");
      at += dropped ? 0 : 1;
    }
  }
  state.begun = true;
  if (const int byte = byte_fallback_ ? fallback_byte(text) : -1; byte >= 0) {
    state.held += static_cast<char>(byte);
    return;
  }
  end_run(state, out);
  emit(text, state, out);
}

void Decoder::finish(DecodeState& state, std::string& out) const {
  if (byte_level_) {
    out += utf8_lossy(state.held);
  } else {
    end_run(state, out);
  }
  state = {};
}

}  // namespace trireme::text
