<?php
/**
 * WHMCS in the small: loads the module as WHMCS does, calls one of its functions with the parameters that standard input
 * gives as JSON, and prints the answer with all that the module has written into WHMCS. What WHMCS itself offers to
 * modules is defined here.
 */

namespace WHMCS\Database {
    /** The table `tblhosting`, as far as a module queries it. */
    final class Capsule
    {
        public static $hostings = [];
        public static $updates = [];
        private $id = null;

        public static function table(string $name): self
        {
            assert($name === 'tblhosting');
            return new self();
        }

        public function where(string $column, $value): self
        {
            if ($column === 'id') {
                $this->id = $value;
            }
            return $this;
        }

        public function whereIn(string $column, array $values): self
        {
            return $this;
        }

        public function get(): array
        {
            return array_map(fn ($id) => (object) ['id' => $id], self::$hostings);
        }

        public function update(array $values): int
        {
            self::$updates[$this->id] = $values;
            return 1;
        }
    }
}

namespace {
    error_reporting(E_ALL);
    set_error_handler(function (int $level, string $message, string $file, int $line) {
        throw new ErrorException($message, 0, $level, $file, $line);
    });
    const WHMCS = true;

    final class ServiceProperties
    {
        public array $saved = [];

        public function save(array $properties): void
        {
            $this->saved = $properties + $this->saved;
        }
    }

    $logged = [];
    function logModuleCall(string $module, string $action, $request, $response): void
    {
        global $logged;
        $logged[] = [$module, $action, $request, $response];
    }

    [, $module, $function] = $argv;
    require $module;
    $given = json_decode(stream_get_contents(STDIN), true, 512, JSON_THROW_ON_ERROR);
    $properties = new ServiceProperties();
    $params = $given['params'] + ['model' => (object) ['serviceProperties' => $properties]];
    \WHMCS\Database\Capsule::$hostings = $given['hostings'] ?? [];
    $answer = ("svc_$function")(...(in_array($function, ['MetaData', 'ConfigOptions'], true) ? [] : [$params]));
    echo json_encode([
        'answer' => $answer,
        'saved' => (object) $properties->saved,
        'updates' => (object) \WHMCS\Database\Capsule::$updates,
        'logged' => $logged,
    ], JSON_THROW_ON_ERROR);
}
