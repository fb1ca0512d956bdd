// Digests of files, by which a later start of a run or of a tool notices other content under the
// same names; "" for what is not there. Local.
#pragma once

#include <filesystem>
#include <string>

namespace trireme::learn {

// Of a model's folder, or of a GGUF file. Of each weight file: name, size, the whole header of
// safetensors, the first and last 64 KiB, and 512 pieces of 4 KiB spread evenly; up to 2 MiB all of
// it. Other training changes every tensor and shows; one small tensor changed by hand in a large
// file may not. "pieces:" stands in front, since a digest of before had the ends only.
std::string digest_of_model(const std::filesystem::path& folder);
// Of a whole file, whatever its name.
std::string digest_of_file(const std::filesystem::path& file);
// Of the files of a model's folder that say how texts are read and what the weights are (*.json,
// *.jinja), names included; of a file, digest_of_file().
std::string digest_of_descriptions(const std::filesystem::path& path);

}  // namespace trireme::learn
