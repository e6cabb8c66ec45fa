/* SPDX-License-Identifier: Apache-2.0 */
/* Feeds every file of the given directories, and every prefix length in steps of it, to a fuzz target: the corpus as a
 * regression test, without libFuzzer. */
#include <dirent.h>

#include "base/file.h"
#include "fuzz.h"

enum { PREFIXES = 16 };

static int replay(const char *path) {
    char *data;
    size_t size;
    pz_error err;
    if (pz_file_read(path, &data, &size, &err) != PZ_OK) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    for (size_t i = 0; i <= PREFIXES; i++) {
        size_t n = size * i / PREFIXES;
        uint8_t *exact = malloc(n ? n : 1); /* so that AddressSanitizer sees a read past the end */
        if (!exact) return 1;
        memcpy(exact, data, n);
        LLVMFuzzerTestOneInput(exact, n);
        free(exact);
    }
    pz_free(data);
    return 0;
}

int main(int argc, char **argv) {
    int files = 0, failed = 0;
    for (int i = 1; i < argc; i++) {
        DIR *dir = opendir(argv[i]);
        if (!dir) {
            perror(argv[i]);
            return 1;
        }
        for (const struct dirent *e; (e = readdir(dir));) {
            if (e->d_name[0] == '.') continue;
            char *path = pz_path_join(argv[i], e->d_name);
            failed += path ? replay(path) : 1;
            pz_free(path);
            files++;
        }
        closedir(dir);
    }
    printf("%d files\n", files);
    return files == 0 || failed != 0;
}
