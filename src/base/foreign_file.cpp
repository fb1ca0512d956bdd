#include "trireme/base/foreign_file.hpp"

#include <algorithm>
#include <array>
#include <cctype>

#include "trireme/base/error.hpp"
#include "trireme/base/text.hpp"

namespace trireme::base {
namespace {

using namespace std::string_view_literals;
namespace fs = std::filesystem;

struct Signature {
  std::string_view magic;
  std::string_view what;
  std::string_view unpack;  // command that writes the content to standard output
};
constexpr std::array compressed{
    Signature{"\x1f\x8b", "gzip", "gzip -dc"},
    Signature{"\x28\xb5\x2f\xfd", "zstd", "zstd -dc"},
    Signature{"BZh", "bzip2", "bzip2 -dc"},
    Signature{"\xfd"
              "7zXZ\0"sv,
              "xz", "xz -dc"},
    Signature{"\x04\x22\x4d\x18", "lz4", "lz4 -dc"},
    Signature{"\x1f\x9d", "compress", "gzip -dc"},
    Signature{"\x5d\0\0"sv, "lzma", "xz -dc --format=lzma"},
    Signature{"7z\xbc\xaf\x27\x1c", "7z", "7z x -so"},
    Signature{"Rar!\x1a\x07", "rar", "unrar p -inul"},
};
constexpr std::string_view zip = "PK\x03\x04", empty_zip = "PK\x05\x06", sqlite = "SQLite format 3";
constexpr std::string_view zstd_skipped = "\x2a\x4d\x18";  // after a first byte of 0x50 to 0x5f
constexpr std::string_view tar = "ustar";
constexpr size_t tar_place = 257;
constexpr std::string_view pickle = "\x80\x02", hdf5 = "\x89HDF\r\n\x1a\n";
// A message of an Arrow stream, as the library `datasets` stores it: a marker and a small length.
constexpr std::string_view arrow_marker = "\xff\xff\xff\xff";

bool begins(std::string_view text, std::string_view what) {
  return text.size() >= what.size() &&
         std::equal(what.begin(), what.end(), text.begin(), [](char a, char b) {
           return a == static_cast<char>(std::tolower(static_cast<unsigned char>(b)));
         });
}

std::string_view without_blanks(std::string_view text) {
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  const size_t first = text.find_first_not_of(" \t\r\n");
  return first == std::string_view::npos ? std::string_view{} : text.substr(first);
}

std::string unpacked(std::string_view what, std::string_view command, const fs::path& file) {
  return text("is compressed with ", what, ": unpack it, `", command, " ",
              shell_word(file.string()), " > NEW`, and name the new file");
}

std::string by_python(std::string_view what, const std::string& code) {
  return text("is ", what, ": write it as JSON lines, `python3 -c ", shell_word(code),
              "`, and name the new file");
}

std::string quoted(const fs::path& file) { return text("\"", file.string(), "\""); }

std::string folder_of(const fs::path& file) {
  return shell_word(file.has_parent_path() ? file.parent_path().string() : ".");
}

// Small texts that stand for a file which some tool keeps elsewhere.
std::string pointer(std::string_view first, const fs::path& file) {
  const auto stands_for = [&](std::string_view whose, const std::string& command) {
    return text("is a pointer of ", whose, ", not the file that it stands for: fetch that, `cd ",
                folder_of(file), " && ", command, "`, or download it again");
  };
  const std::string name = shell_word(file.filename().string());
  if (first.starts_with("version https://git-lfs.github.com/spec/") ||
      first.starts_with("version https://hawser.github.com/spec/"))
    return stands_for("Git LFS", "git lfs pull");
  if (first.starts_with("# xet version")) return stands_for("Git Xet", "git xet checkout");
  if (first.starts_with("/annex/objects/")) return stands_for("git-annex", "git annex get " + name);
  if (first.starts_with("outs:") && first.find("md5:") != std::string_view::npos)
    return stands_for("DVC", "dvc pull " + name);
  return {};
}

std::string table(std::string_view first, const fs::path& file) {
  if (first.starts_with("PAR1"))
    return by_python("a Parquet file", text("import pandas; pandas.read_parquet(", quoted(file),
                                            ").to_json(\"NEW.jsonl\", orient=\"records\", "
                                            "lines=True)"));
  if (first.starts_with("PARE")) return "is an encrypted Parquet file: write it as JSON lines";
  if (first.starts_with("ARROW1"))
    return by_python("an Arrow file", text("import pandas; pandas.read_feather(", quoted(file),
                                           ").to_json(\"NEW.jsonl\", orient=\"records\", "
                                           "lines=True)"));
  if (first.starts_with(arrow_marker) && first.size() >= 8 && first[7] == '\0')
    return by_python("an Arrow stream, as the library datasets stores it",
                     text("import datasets; datasets.Dataset.from_file(", quoted(file),
                          ").to_json(\"NEW.jsonl\")"));
  return {};
}

std::string packed(std::string_view first, const fs::path& file, Expected expected) {
  for (const Signature& kind : compressed) {
    if (first.starts_with(kind.magic)) return unpacked(kind.what, kind.unpack, file);
  }
  if (expected == Expected::weights && (first.starts_with(zip) || first.starts_with(pickle)))
    return "is a PyTorch file: load it with transformers and store it with save_pretrained(FOLDER)"
           ", which writes safetensors";
  if (first.starts_with(zip)) return unpacked("zip", "unzip -p", file);
  if (first.starts_with(empty_zip))
    return "is a zip archive without a file in it: look for another";
  const bool skipped = first.size() > 4 && (static_cast<unsigned char>(first[0]) & 0xf0) == 0x50;
  if (skipped && first.substr(1).starts_with(zstd_skipped))
    return unpacked("zstd", "zstd -dc", file);
  if (first.size() > tar_place && first.substr(tar_place).starts_with(tar))
    return text("is a tar archive: unpack it, `tar -xf ", shell_word(file.string()),
                "`, and name a file of it");
  if (first.starts_with(sqlite)) return "is an SQLite database: write its table as JSON lines";
  if (first.starts_with(hdf5))
    return "is an HDF5 file: weights of a run's checkpoint become a model with `trireme convert`";
  if (first.starts_with("GGUF"))
    return "is a GGUF file: let its name end in .gguf, and `trireme convert` it";
  return {};
}

std::string page(std::string_view first, Expected expected) {
  const std::string_view content = without_blanks(first);
  const bool html =
      begins(content, "<!doctype html") || begins(content, "<html") || content.starts_with("<!--");
  const bool element = expected != Expected::text && content.size() > 1 && content[0] == '<' &&
                       std::isalpha(static_cast<unsigned char>(content[1])) != 0;
  if (html || element || begins(content, "<?xml"))
    return text("is an ", html ? "HTML" : "XML",
                " page, as a server sends it with an error or a log-in: download the file again, "
                "and look at what was sent");
  return {};
}

// Also without its mark, by the zeros beside ASCII; then other zeros, which no text has.
std::string encoding(std::string_view first, const fs::path& file) {
  const auto zeros_at = [&](size_t place) {
    return first.size() >= 4 && first[place] == '\0' && first[place + 2] == '\0' &&
           first[1 - place] != '\0' && first[3 - place] != '\0';
  };
  const char* name = first.starts_with("\xff\xfe\0\0"sv) || first.starts_with("\0\0\xfe\xff"sv)
                         ? "UTF-32"
                     : first.starts_with("\xff\xfe") || first.starts_with("\xfe\xff") ? "UTF-16"
                     : zeros_at(1)                                                    ? "UTF-16LE"
                     : zeros_at(0)                                                    ? "UTF-16BE"
                                                                                      : nullptr;
  if (name != nullptr)
    return text("is ", name, ": make it UTF-8, `iconv -f ", name, " -t UTF-8 ",
                shell_word(file.string()), " > NEW`, and name the new file");
  const size_t zero = first.find('\0');
  const bool begins_well = without_blanks(first).starts_with('{');  // the reader names the line
  if (zero == std::string_view::npos || begins_well) return {};
  return text("is a binary file, not a text (byte ", zero + 1,
              " is zero): name another file, or save its content as text");
}

// The first line of a table whose columns are parted by commas or tabulators.
std::string separated(std::string_view first, const fs::path& file) {
  const std::string_view line = without_blanks(first).substr(0, without_blanks(first).find('\n'));
  const bool names = !line.empty() && (std::isalpha(static_cast<unsigned char>(line[0])) != 0 ||
                                       line[0] == '_' || line[0] == '"');
  const bool tabs = line.find('\t') != std::string_view::npos;
  if (!names || (!tabs && line.find(',') == std::string_view::npos) ||
      line.find_first_of("{}:") != std::string_view::npos)
    return {};
  return by_python(
      tabs ? "a table (TSV)" : "a table (CSV)",
      text("import pandas; pandas.read_csv(", quoted(file), tabs ? ", sep=\"\\t\"" : "",
           ").to_json(\"NEW.jsonl\", orient=\"records\", lines=True)"));
}

// JSON, but not an object a line.
std::string document(std::string_view first, const fs::path& file) {
  const std::string_view content = without_blanks(first);
  const auto lines_of = [&](std::string_view code) {
    return text("`python3 -c ", shell_word(text("import json, sys; ", code)), " < ",
                shell_word(file.string()), " > NEW.jsonl`, and name the new file");
  };
  if (content.starts_with('[')) {
    const std::string_view inside = without_blanks(content.substr(1));
    const size_t end_of_line = content.find('\n');
    const bool alone = content
                           .substr(1, end_of_line == std::string_view::npos ? std::string_view::npos
                                                                            : end_of_line - 1)
                           .find_first_not_of(" \t\r") == std::string_view::npos;
    if (inside.starts_with('{') || (alone && end_of_line != std::string_view::npos))
      return text("is one JSON array, not one JSON object a line: make lines of it, ",
                  lines_of("[print(json.dumps(r)) for r in json.load(sys.stdin)]"));
  }
  if (content.starts_with("{'"))
    return text(
        "is written in Python's form (single quotes), not JSON: ",
        lines_of("import ast; [print(json.dumps(ast.literal_eval(r))) for r in sys.stdin]"));
  if (content.starts_with('{')) {
    const size_t end_of_line = content.find('\n');
    if (end_of_line != std::string_view::npos &&
        content.substr(1, end_of_line - 1).find_first_not_of(" \t\r") == std::string_view::npos)
      return text(
          "is one JSON object over several lines, not one a line: put each record on a line of its "
          "own, e.g. ",
          lines_of("print(json.dumps(json.load(sys.stdin)))"));
  }
  return {};
}

}  // namespace

std::string shell_word(const std::string& text) {
  const bool plain = !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c >= 0x80 ||
           "_-./=+,:@%"sv.find(static_cast<char>(c)) != std::string_view::npos;
  });
  if (plain) return text;
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? "'\\''" : std::string(1, c);
  return out + "'";
}

std::string foreign_file(std::string_view first, const fs::path& file, Expected expected) {
  first = first.substr(0, foreign_file_bytes);
  std::string found = pointer(first, file);
  if (found.empty()) found = packed(first, file, expected);
  if (found.empty()) found = page(first, expected);
  if (found.empty() && expected == Expected::json_lines) found = table(first, file);
  if (found.empty() && expected != Expected::weights) found = encoding(first, file);
  if (found.empty() && expected == Expected::json_lines) found = document(first, file);
  if (found.empty() && expected == Expected::json_lines) found = separated(first, file);
  if (found.empty() && expected == Expected::weights && without_blanks(first).starts_with("{\""))
    found = "is a JSON text, as a server sends it with an error: download the file again";
  return found;
}

bool is_pointer_file(std::string_view first) { return !pointer(first, "").empty(); }

void refuse_foreign_file(std::string_view first, const fs::path& file, Expected expected) {
  const std::string problem = foreign_file(first, file, expected);
  VALIDATE(problem.empty(), ExitCode::bad_data, file.string(), " ", problem);
}

}  // namespace trireme::base
