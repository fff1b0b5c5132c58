/* Feeds every file of the given directories to a fuzz target: the corpus as a plain test. */
#include <dirent.h>
#include <stdio.h>

#include "base/path.h"

#define INPUT_MAX (16u * 1024u * 1024u)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int replay_dir(const char *path, size_t *count)
{
    DIR *d = opendir(path);
    if (!d) {
        perror(path);
        return 1;
    }
    int failed = 0;
    for (struct dirent *e; (e = readdir(d));) {
        if (e->d_name[0] == '.')
            continue;
        hf_auto_free char *content = NULL;
        size_t n = 0;
        int r = hf_read_file_at(dirfd(d), e->d_name, INPUT_MAX, &content, &n);
        if (r < 0) {
            fprintf(stderr, "%s/%s: %s\n", path, e->d_name, strerror(-r));
            failed = 1;
            continue;
        }
        (void)LLVMFuzzerTestOneInput((const uint8_t *)content, n);
        (*count)++;
    }
    (void)closedir(d);
    return failed;
}

int main(int argc, char **argv)
{
    size_t count = 0;
    int failed = 0;
    for (int i = 1; i < argc; i++)
        failed |= replay_dir(argv[i], &count);
    printf("%zu inputs replayed\n", count);
    return failed || count == 0;
}
