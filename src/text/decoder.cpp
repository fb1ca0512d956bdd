#include "text/decoder.hpp"

#include <nlohmann/json.hpp>

#include "text/byte_alphabet.hpp"
#include "text/normalizer.hpp"
#include "trireme/base/error.hpp"
#include "trireme/text/tokenizer_parts.hpp"
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
    refuse_decoder(where, base::text("is null (known: ", list_of(known_decoders), ")"));
  read(json, where);
}

void Decoder::read(const Json& json, const std::string& where) {
  const std::string type = decoder_text(json, "type", where);
  const bool none = !byte_level_ && !by_suffix() && !byte_fallback_ && !fused_ && steps_.empty();
  const bool per_token = !byte_level_ && !by_suffix() && !byte_fallback_ && !fused_;
  if (type == "Sequence") {
    const auto parts = json.find("decoders");
    if (parts == json.end() || !parts->is_array())
      refuse_decoder(where, "Sequence has no list `decoders`: the file is damaged");
    for (const Json& part : *parts) read(part, where);
  } else if (type == "ByteLevel" && none) {
    byte_level_ = true;
  } else if (type == "BPEDecoder" && none) {
    suffix_ = json.contains("suffix") ? decoder_text(json, "suffix", where) : "</w>";
    if (suffix_.empty())
      refuse_decoder(where, "BPEDecoder has an empty `suffix`: the file is damaged");
  } else if (type == "Replace" && per_token) {
    steps_.emplace_back(Replace{read_pattern(json, "decoder Replace", where),
                                decoder_text(json, "content", where)});
  } else if (type == "Metaspace" && per_token) {
    const bool legacy = json.contains("add_prefix_space") && json["add_prefix_space"] == false;
    const bool never = json.contains("prepend_scheme") ? json["prepend_scheme"] == "never" : legacy;
    steps_.emplace_back(Metaspace{decoder_text(json, "replacement", where), !never});
  } else if (type == "Strip" && per_token) {
    steps_.emplace_back(read_strip(json, where));
  } else if (type == "ByteFallback" && per_token) {
    byte_fallback_ = true;
  } else if (type == "Fuse") {
    fused_ = true;
  } else if (type == "Strip" && fused_ && !byte_level_ && !by_suffix() && strip_.text.empty()) {
    strip_ = read_strip(json, where);
  } else {
    refuse_decoder(where,
                   "type \"" + type +
                       "\" is not known here (known: ByteLevel; BPEDecoder; or Replace, Metaspace "
                       "and Strip, then ByteFallback, Fuse, Strip, in a Sequence)");
  }
}

Decoder::Strip Decoder::read_strip(const Json& json, const std::string& where) {
  Strip strip;
  strip.text = decoder_text(json, "content", where);
  const auto number = [&](const char* key) {
    const auto found = json.find(key);
    if (found == json.end() || !found->is_number_unsigned() || *found > 1'000'000)
      refuse_decoder(where, base::text("Strip has no number `", key, "`: the file is damaged"));
    return found->get<int64_t>();
  };
  strip.start = number("start");
  strip.stop = number("stop");
  if (strip.text.empty())
    refuse_decoder(where, "Strip has an empty `content`: the file is damaged");
  return strip;
}

std::string Decoder::run(const Step& step, std::string text, bool first) {
  if (const auto* replace = std::get_if<Replace>(&step))
    return replace_matches(text, replace->pattern, replace->by);
  if (const auto* strip = std::get_if<Strip>(&step)) {
    std::string_view rest = text;
    for (int64_t i = 0; i < strip->start && rest.starts_with(strip->text); ++i)
      rest.remove_prefix(strip->text.size());
    for (int64_t i = 0; i < strip->stop && rest.ends_with(strip->text); ++i)
      rest.remove_suffix(strip->text.size());
    return std::string(rest);
  }
  const auto& metaspace = std::get<Metaspace>(step);
  const bool dropped = metaspace.drops_first && first;
  for (size_t at = 0; (at = text.find(metaspace.mark, at)) != std::string::npos;) {
    text.replace(at, metaspace.mark.size(), dropped ? "" : " ");
    at += dropped ? 0 : 1;
  }
  return text;
}

// Text that may be taken off the end waits in `tail`.
void Decoder::emit(std::string_view text, DecodeState& state, std::string& out) const {
  while (state.stripped < strip_.start && text.starts_with(strip_.text)) {
    text.remove_prefix(strip_.text.size());
    ++state.stripped;
  }
  if (text.empty()) return;
  state.stripped = strip_.start;
  if (strip_.stop == 0) {
    out += text;
    return;
  }
  state.tail += text;
  size_t kept = state.tail.size();
  for (int64_t i = 0; i < strip_.stop; ++i) {
    if (!std::string_view(state.tail).substr(0, kept).ends_with(strip_.text)) break;
    kept -= strip_.text.size();
  }
  out.append(state.tail, 0, kept);
  state.tail.erase(0, kept);
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

std::string Decoder::with_suffix_as(std::string_view by, const std::string& token) const {
  std::string out;
  size_t done = 0;
  for (size_t at = 0; (at = token.find(suffix_, done)) != std::string::npos;) {
    out.append(token, done, at - done).append(by);
    done = at + suffix_.size();
  }
  return out.append(token, done);
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
  if (by_suffix()) {  // a blank only where another token follows
    out += with_suffix_as(" ", state.held);
    state.held = token;
    return;
  }
  std::string text(token);
  for (const Step& step : steps_) text = run(step, std::move(text), !state.begun);
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
  } else if (by_suffix()) {
    out += with_suffix_as("", state.held);
  } else {
    end_run(state, out);
  }
  state = {};
}

}  // namespace trireme::text
