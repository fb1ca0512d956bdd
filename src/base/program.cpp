#include "trireme/base/program.hpp"

#include <link.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string_view>

namespace trireme::base {
namespace {

std::string hexadecimal(const unsigned char* bytes, size_t count) {
  std::string out;
  for (size_t i = 0; i < count; ++i) {
    char two[3];
    std::snprintf(two, sizeof two, "%02x", bytes[i]);
    out += two;
  }
  return out;
}

// A segment of notes: header, name and content of each, padded to 4 bytes.
std::string id_among(const unsigned char* notes, size_t bytes) {
  const auto padded = [](size_t size) { return (size + 3) / 4 * 4; };
  for (size_t at = 0; at + sizeof(ElfW(Nhdr)) <= bytes;) {
    ElfW(Nhdr) note;
    std::memcpy(&note, notes + at, sizeof note);
    const size_t name = at + sizeof note;
    const size_t content = name + padded(note.n_namesz);
    if (content + note.n_descsz > bytes) break;
    const std::string_view owner(reinterpret_cast<const char*>(notes + name), note.n_namesz);
    if (note.n_type == NT_GNU_BUILD_ID && owner == std::string_view("GNU\0", 4))
      return hexadecimal(notes + content, note.n_descsz);
    at = content + padded(note.n_descsz);
  }
  return {};
}

// The first object is the program itself.
int look_at_first(dl_phdr_info* object, size_t, void* into) {
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const auto& part = object->dlpi_phdr[i];
    if (part.p_type != PT_NOTE) continue;
    const std::string id = id_among(
        reinterpret_cast<const unsigned char*>(object->dlpi_addr + part.p_vaddr), part.p_memsz);
    if (!id.empty()) *static_cast<std::string*>(into) = id;
  }
  return 1;
}

}  // namespace

std::string build_id() {
  std::string id;
  ::dl_iterate_phdr(look_at_first, &id);
  return id;
}

}  // namespace trireme::base
