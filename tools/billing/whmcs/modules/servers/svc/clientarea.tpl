{* What a customer sees of the machine on its page in WHMCS. *}
{if $problem}
<div class="alert alert-warning">{$problem|escape}</div>
{else}
<dl>
  <dt>State</dt><dd>{$service.state|escape}{if !$service.settled} (being carried out){/if}</dd>
  {if $service.machine}
  <dt>Machine</dt><dd>{$service.machine.name|escape}: {$service.machine.status|escape}</dd>
  <dt>Address</dt><dd>{$service.machine.primary_ip|escape}</dd>
  {/if}
  <dt>Plan</dt><dd>{$service.plan|escape}</dd>
  <dt>Image</dt><dd>{$service.image|escape}</dd>
</dl>
{/if}
